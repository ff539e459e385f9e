--------------------------------- MODULE Live --------------------------------
(***************************************************************************)
(* What must happen in the end: liveness.                                  *)
(*                                                                         *)
(* P ~> Q reads: whenever P, then later (or now) Q.  Nothing happens in    *)
(* the end unless somebody keeps moving; who does is the FAIRNESS.         *)
(* WF_vars(A), weak fairness: if A can be taken from some point on, it is  *)
(* taken in the end.  Asked for is as little as possible: that the engine  *)
(* goes on flushing, that the worker goes on working, that a back end that *)
(* is called answers.  Of lookups, cleanups and marks nothing is asked: a  *)
(* request may never come back.                                            *)
(*                                                                         *)
(* A back end that may hang is the feature "hang": then a call may never   *)
(* return, and of all this only the last property is left (MCLive_hung;    *)
(* the files in false/ show how the others fail).                          *)
(***************************************************************************)
EXTENDS AsyncLookup

BackEnd == WorkerFails \/ \E yes \in SUBSET K : WorkerAnswer(yes)

\* A call of shutdown moves on by itself: its timeout passes, and it ends when it may.
ShuttingDown == WF_vars(ShutdownTimeout) /\ WF_vars(ShutdownEnd)

Fairness ==
    /\ WF_vars(Flush)
    /\ WF_vars(WorkerTake) /\ WF_vars(WorkerCall)
    /\ WF_vars(BackEnd)
    /\ ShuttingDown

LiveSpec == Spec /\ Fairness

Phase(k) == entry[k].phase
Orphan(k) == Phase(k) \in {"IN_FLIGHT", "RESOLVED"} /\ entry[k].waiters = {}
NobodyHolds == \A r \in R : held[r] = {}
Empty == \A k \in K : Phase(k) = "ABSENT"

\* A question that was asked for is sent, or taken back.
PendingEndsLive == \A k \in K : Phase(k) = "PENDING" ~> Phase(k) # "PENDING"

\* A question that was sent is answered and the answer is read.
InFlightEndsLive == \A k \in K : Phase(k) = "IN_FLIGHT" ~> Phase(k) # "IN_FLIGHT"

\* What nobody waits for is gone in the end, or somebody joined it.
OrphanEndsLive == \A k \in K : Orphan(k) ~> ~Orphan(k)

\* Nothing is kept for nobody.
EmptiesLive == NobodyHolds ~> Empty \/ ~NobodyHolds

\* Shutdown returns, whatever the back end does.
ShutdownReturnsLive == shut \in {"sentinel", "flag"} ~> shut = "closed"

(***************************************************************************)
(* Not true: that every question somebody waits for is RESOLVED in the     *)
(* end.  A lookup can read an error and ask again in one step, and new     *)
(* requests can go on doing so.  It is true without errors.                *)
(***************************************************************************)
WaitedForResolvedLive ==
    \A k \in K : entry[k].waiters # {} ~> Phase(k) = "RESOLVED" \/ entry[k].waiters = {}
=============================================================================
