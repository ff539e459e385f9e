-------------------------- MODULE MCTieringMutants ---------------------------
(***************************************************************************)
(* Known bugs of tiering, each as the one decision that it gets wrong.  A  *)
(* file in mutants/ puts one of these in the place of the operator of      *)
(* Tiering that is named beside it, and TLC must refute what comes out.    *)
(***************************************************************************)
EXTENDS MCTiering

\* no_step_pin, for Pins: an answer HIT keeps nothing.
NoPin == FALSE

\* no_waiter_protection, for Evictable: a block that was loaded for somebody who has not read it
\* yet is taken away again.
EvictableThoughAwaited(b) == b.ready /\ b.refs = 0 /\ ~b.pinned

\* submit_after_finish, for Left: who finished stays in the line at a queued promotion.
LeftButQueued(sl, r) ==
    [s \in Slots |-> IF \E c \in queue : c[1] = s THEN sl[s]
                     ELSE [sl[s] EXCEPT !.waiters = IsNot(r, @)]]

\* heard_before_cascade, for Hears: the tier hears of a finish while slots are still filled.
HearsAtOnce(me) == me.phase \in {"leaving", "gone"}

\* second_write, for Spent: a write that came to nothing is as if it had not been.
NeverSpent(me, k, w) == FALSE

\* slot_freed_early, for Vacated: a load that nobody waits for any more loses its slots at once.
VacatedAtOnce(sl) ==
    {c[1] : c \in Unwanted(sl)}
      \cup {s \in Slots : sl[s].waiters = <<>> /\ \E c \in ClaimsOf(Loads) : c[1] = s}

\* reset_frees_at_once, for Kept: a reset gives away slots that are written or read.
NeverKept(b) == IF b.dropped THEN Free ELSE b

\* no_budget, for Room: promotions take all there is.
RoomWithoutBudget(sl) == Available(sl)

\* waits_for_room, for Answers: what there is no room for is not a miss, it is waited for.
AnswersInFull(found, e) == e = Len(found.seen) /\ \A i \in 1..e : found.seen[i] = "HIT"

\* failed_load_readable, for After: a write that failed counts as one that did not.
AfterAny(b, k, ok) == Kept([b EXCEPT !.ready = TRUE, !.old = FALSE])
=============================================================================
