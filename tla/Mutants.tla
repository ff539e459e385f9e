-------------------------------- MODULE Mutants ------------------------------
(***************************************************************************)
(* Known bugs.  Each operator here is what one operator of the machine     *)
(* would be in a system that has the bug; a file in mutants/ puts it in    *)
(* its place (`Missed <- NeverMissed') and names the property that TLC     *)
(* must find broken.  The machine itself knows nothing of them.  Their     *)
(* twins in Python are in kvtier/model/mutants.py, under the same names.   *)
(***************************************************************************)
EXTENDS AsyncLookup

\* no_mark_miss: a failed load leaves the verdict as it is, and the doomed load is tried again.
NeverMissed(en) == en

\* no_generation: an answer is for whatever question of its key is out. As long as an entry stays
\* while its question is out this changes nothing (equivalent/no_generation_check.cfg); it needs a
\* second bug, EverythingGoesWithLast, to do harm.
MatchesAnyGeneration(e, a) == e[a[1]].phase = "IN_FLIGHT"

\* cleanup_deletes_in_flight: the last waiter takes the entry along, though its question is out.
EverythingGoesWithLast(en) == TRUE

\* cleanup_keeps_pending: a question that nobody wants any more is sent all the same.
OnlyVerdictsGoWithLast(en) == en.phase = "RESOLVED"

\* flush_does_not_drain: replies are read by lookups only.
EntriesAsTheyAre == entry
ResultsAsTheyAre == results

\* mark_miss_forces_unresolved: a failed load answers a question that is not answered yet.
MissedWhateverPhase(en) ==
    CASE en.phase = "RESOLVED" -> [en EXCEPT !.verdict = "F", !.error = FALSE, !.age = ForcedAge]
      [] en.phase = "ABSENT"   -> en
      [] OTHER                 -> [Resolved(en, "F") EXCEPT !.age = ForcedAge]

\* lazy_answer_kills_worker: an answer that raises while it is read ends the worker's thread.
NothingPublished == results
WorkerDies == Ended

\* short_answer: the answer has one value too few, and its last key gets none.
AllButOne(reply) == reply \ {CHOOSE a \in reply : TRUE}

\* shutdown_leaves_pending: what has no answer stays after shutdown.
LeftAsIs(e) == e

\* shutdown_waits_for_ever: shutdown has no timeout.
NeverGivesUp == FALSE

\* drain_drops_orphans: an answer that finds no waiter is dropped, though somebody is about to ask.
AnsweredAndSwept(e, reply) ==
    Swept([k \in K |->
        LET mine == {a \in reply : a[1] = k /\ Matches(e, a)}
        IN  IF mine = {} THEN e[k] ELSE Resolved(e[k], (CHOOSE a \in mine : TRUE)[3])])

\* batch_sent_twice: the batch is not emptied when it is sent.
BatchStays == batch

\* cleanup_forgets_index: the reverse index keeps what the request let go of.
NothingForgotten(r) == held

\* late_asks_again: a question past its deadline is asked again while the first is still out.
TooOldOrLate(en) ==
    (en.phase = "RESOLVED" /\ en.age = "old") \/ (en.phase = "IN_FLIGHT" /\ en.late)

\* store_not_noted: a store that completes while the question is out is undone by its "no".
StoredOnlyInVerdict(en) ==
    IF en.phase = "RESOLVED"
    THEN [en EXCEPT !.verdict = "T", !.error = FALSE, !.age = Youth]
    ELSE en

\* nobody_excused: those who were told "no" must wait again when a failed question is asked again.
ExcusesNobody(en, r) == {}

\* forced_miss_expires: the miss that a failed load forced gets old, and the load is tried again.
ForcedAgeIsYouth == Youth

\* error_kept_as_absent: a failed question counts as "no" for everybody, as long as it is held.
NeverAsksAgain(en, isnew) == FALSE

(***************************************************************************)
(* No bug: draining before the lookup joins. What comes with no waiter     *)
(* stays until the next flush, so the lookup finds it either way. (vLLM    *)
(* 0.33 drains first, and drops what has no waiter: drain_drops_orphans.)  *)
(***************************************************************************)
DrainedThenJoined(r, k) == Joined(AfterDrain(entry), r, k)

(***************************************************************************)
(* Made-up bugs, for properties that none of the known ones breaks: see    *)
(* bites/.  A property that nothing can break says nothing.                *)
(***************************************************************************)
\* A flush keeps verdicts that nobody took.
NothingSwept(e) == e

\* Shutdown drops verdicts too.
NothingKept(e) == [k \in K |-> Absent]

\* Shutdown does not wait for the worker.
EndsAtOnce == shut \in {"sentinel", "flag"}

\* The first lookup after a flush does not drain.
AsBefore(e) == e

\* As many batches as one likes are out.
NoneOut == 0

\* A lookup reads verdicts only: no excuse, no deadline.
VerdictOrNone(en, r) == IF en.phase = "RESOLVED" THEN en.verdict ELSE "none"

\* The worker does not look at the stop flag.
FlagNotRead == TRUE

\* The worker takes up the batch that was sent last.
LastBatch == queue[Len(queue)]
EarlierBatches == SubSeq(queue, 1, Len(queue) - 1)

\* An answer is applied to a verdict too.
MatchesGenerationOnly(e, a) == e[a[1]].phase \in {"IN_FLIGHT", "RESOLVED"} /\ e[a[1]].gen = a[2]

\* A completed store leaves the mark of the error.
StoredKeepsError(en) ==
    CASE en.phase = "RESOLVED"  -> [en EXCEPT !.verdict = "T", !.age = Youth]
      [] en.phase = "IN_FLIGHT" -> [en EXCEPT !.stored = TRUE]
      [] OTHER                  -> en
=============================================================================
