----------------------------- MODULE TieringLive -----------------------------
(***************************************************************************)
(* Every deferred request ends: it is told how far its hit reaches, or it  *)
(* finishes.                                                               *)
(*                                                                         *)
(* Asked for is as little as possible: that steps go on, a pass of each    *)
(* waiting request among them, and that writes that somebody may wait for  *)
(* end: loads are reported, and the engine ends what it stores.  Of        *)
(* admissions, reads, finishes, the tier's stores and other requests       *)
(* nothing is asked: slots may be held for ever, because nobody waits for  *)
(* a slot.                                                                 *)
(*                                                                         *)
(* []<>P reads: again and again P.  It says of a state what weak fairness  *)
(* says of an action, where only that action leads out of ~P: nobody but   *)
(* StepEnd ends a step, nobody but a report ends a load.  (TLC finds out   *)
(* much faster whether a state is such than whether an action is enabled.) *)
(***************************************************************************)
EXTENDS TieringProps

StepsEnd == []<>(~polled /\ \A r \in R : ~req[r].passed)
PassesMade == \A r \in R : []<>~(req[r].phase = "waiting" /\ ~req[r].passed)
LoadsEnd == \A s \in Slots : []<>(\A j \in Loads : \A c \in j.claims : c[1] # s)
FillsEnd == \A r \in R : []<>(req[r].filling = {})
\* Only for who was preempted while it read:
ReadsEnd == Can("preempt") => \A r \in R : []<>(req[r].reading = {})

LiveSpec == Spec /\ StepsEnd /\ PassesMade /\ LoadsEnd /\ FillsEnd /\ ReadsEnd

Ends(r) == req[r].phase = "waiting" ~> req[r].phase # "waiting"
EndsLive == \A r \in R : Ends(r)

\* A tier that never reports and an engine that never ends a store: with a bound on deferrals
\* waiting ends all the same.
BoundReached == \A r \in R : []<>~(req[r].phase = "waiting" /\ ~req[r].late)
LateSpec == Spec /\ StepsEnd /\ PassesMade /\ BoundReached /\ ReadsEnd

\* Not true: the same without a bound.
CarelessSpec == Spec /\ StepsEnd /\ PassesMade
=============================================================================
