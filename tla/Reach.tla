--------------------------------- MODULE Reach -------------------------------
(***************************************************************************)
(* Something interesting happens.  An invariant can hold because what it   *)
(* speaks of never occurs; so each of these says "this never happens", and *)
(* TLC must find that it does.  The counterexample is the shortest story   *)
(* in which it happens, and good to read.                                  *)
(***************************************************************************)
EXTENDS MC

\* Right after a flush there is still a batch: MaxOut batches are out, so it was held back.
NeverHeldBack == ~(due /\ batch # {})

\* A batch with more than one question in it.
NeverTwoInABatch == \A i \in DOMAIN queue : Cardinality(queue[i]) < 2

\* A request that let go took its question back: the back end never hears of it.
NeverTakenBack == [][\A k \in K : entry[k].phase = "PENDING" => entry'[k].phase # "ABSENT"]_vars

\* A verdict that came with no waiter is taken by somebody.
NeverUnclaimedThenTaken ==
    [][\A k \in K : Unclaimed(entry[k]) /\ entry'[k].phase = "RESOLVED" => Unclaimed(entry'[k])]_vars

\* A verdict that came with no waiter is swept by the flush.
NeverSwept == [][\A k \in K : Unclaimed(entry[k]) => entry'[k].phase # "ABSENT"]_vars

\* A question that is out and that nobody waits for is joined by somebody.
NeverOrphanJoined ==
    [][\A k \in K : entry[k].phase = "IN_FLIGHT" /\ entry[k].waiters = {} /\ entry'[k].phase = "IN_FLIGHT"
           => entry'[k].waiters = {}]_vars

\* A block was stored while its question was out, the answer was "no", and the verdict is "yes".
NeverStoredThenNo ==
    [][\A k \in K : ~(entry[k].stored /\ AnswersTo(k) = {"F"} /\ entry'[k].verdict = "T")]_vars

\* Somebody reads "no" while the question that failed is asked again.
NeverExcused == \A k \in K : entry[k].excused = {}

\* An error is read and asked again in one call of lookup: two transitions of one key.
NeverReadAndAskedAgain ==
    [][\A k \in K : entry[k].phase = "IN_FLIGHT" => entry'[k].phase # "PENDING"]_vars

\* A verdict gets too old and is asked again.
NeverAgedThenAsked ==
    [][\A k \in K : entry[k].age = "old" => entry'[k].phase # "PENDING"]_vars

\* A deadline passes, and the answer comes later and is used.
NeverLateThenAnswered ==
    [][\A k \in K : entry[k].late /\ entry[k].waiters # {} => entry'[k].phase # "RESOLVED"]_vars

\* The stop flag is set between the worker's look at it and its call.
NeverFlagAfterLook == ~(shut = "flag" /\ worker[1] = "read")

\* The back end is called after shutdown has returned.
NeverCalledAfterClose == ~(shut = "closed" /\ worker[1] = "call")

\* A reply comes after shutdown has returned.
NeverAnsweredAfterClose == ~(shut = "closed" /\ results # <<>>)

\* Shutdown returns although the worker never does.
NeverClosedWhileHung == ~(shut = "closed" /\ worker[1] = "hung")

\* Shutdown waits for the worker, and everything that was asked is answered.
NeverAnsweredAtClose == ~(shut = "closed" /\ \E k \in K : entry[k].verdict = "T")
=============================================================================
