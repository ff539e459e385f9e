-------------------------- MODULE AsyncLookupProps ---------------------------
(***************************************************************************)
(* What must hold of every single STEP of the lookup machine: the action   *)
(* properties.                                                             *)
(*                                                                         *)
(* An invariant looks at one state; it cannot see that a flush left a      *)
(* reply unread, because a state with an unread reply is a good state      *)
(* everywhere else.  An action property looks at a state and the next one. *)
(* [][P]_vars reads: every step that changes anything satisfies P.  In P   *)
(* an action stands for "this was that call": Flush => Q is "if this step  *)
(* was a flush, then Q".                                                   *)
(*                                                                         *)
(* Most steps are none of a property's business, so each begins with a     *)
(* cheap condition that lets those pass.                                   *)
(***************************************************************************)
EXTENDS AsyncLookup

Waits(en) == en.phase \in {"PENDING", "IN_FLIGHT"}
Replies == {"none", "T", "F"}

\* The answers to the present question of k that came and were not read.
AnswersTo(k) ==
    {a[3] : a \in {b \in UNION RangeOf(results) : b[1] = k /\ b[2] = entry[k].gen}}

(***************************************************************************)
(* 1. A verdict is applied only to the generation that asked.  A question  *)
(* stops being out only by an answer to it (or by the end of shutdown),    *)
(* and the verdict is what that answer says: "yes" also if the block was   *)
(* stored meanwhile, an error if the question failed.                      *)
(***************************************************************************)
Says(en, answer) ==
    LET yes == answer = "T" \/ en.stored
    IN  <<IF yes THEN "T" ELSE "F", answer = "E" /\ ~yes>>

GenerationProp ==
    [][\A k \in K :
        entry[k].phase = "IN_FLIGHT" /\ entry'[k].phase # "IN_FLIGHT" =>
            CASE entry'[k].phase = "RESOLVED" ->
                    /\ entry'[k].gen = entry[k].gen
                    /\ \E a \in AnswersTo(k) :
                          <<entry'[k].verdict, entry'[k].error>> = Says(entry[k], a)
              [] entry'[k].phase = "PENDING" -> Says(entry[k], "E")[2] /\ "E" \in AnswersTo(k)
              [] OTHER -> AnswersTo(k) # {} \/ shut' = "closed"]_vars

(***************************************************************************)
(* Phases move as the table of the specification says.  A call may do one  *)
(* thing after the other: a lookup reads an error and asks again; a flush  *)
(* reads an answer and sweeps it.  A generation ends where its entry does, *)
(* or where it is asked again.                                             *)
(***************************************************************************)
Ask     == {<<"ABSENT", "PENDING">>, <<"RESOLVED", "PENDING">>}
Send    == {<<"PENDING", "IN_FLIGHT">>}
Answer  == {<<"IN_FLIGHT", "RESOLVED">>}
Release == {<<"PENDING", "ABSENT">>, <<"RESOLVED", "ABSENT">>}
Sweep   == {<<"RESOLVED", "ABSENT">>}
Close   == {<<"PENDING", "ABSENT">>, <<"IN_FLIGHT", "ABSENT">>}
Then(first, second) ==
    first \cup second \cup
    {<<m[1], n[2]>> : m \in first, n \in {x \in second : \E y \in first : y[2] = x[1]}}

Moves(k, allowed) == <<entry[k].phase, entry'[k].phase>> \in allowed

PhaseProp ==
    [][\A k \in K :
        /\ entry[k].phase # entry'[k].phase =>
             \/ Moves(k, Then(Answer, Ask)) /\ \E r \in R, a \in Replies : Lookup(r, k, a)
             \/ Moves(k, Answer) /\ \E r \in R, j \in K, a \in Replies : Lookup(r, j, a)
             \/ Moves(k, Answer) /\ Drain
             \/ Moves(k, Then(Answer, Sweep) \cup Send) /\ Flush
             \/ Moves(k, Release) /\ \E r \in R : Cleanup(r)
             \/ Moves(k, Then(Answer, Sweep) \cup Close) /\ ShutdownEnd
        /\ entry[k].gen # entry'[k].gen =>
             entry'[k].phase = (IF entry'[k].gen = 0 THEN "ABSENT" ELSE "PENDING")]_vars

(***************************************************************************)
(* What somebody waits for is kept.  An entry goes when the last who       *)
(* waited lets go; or when nobody waited, by a flush or by shutdown; or    *)
(* because shutdown came before its answer.                                *)
(***************************************************************************)
WantedProp ==
    [][\A k \in K : entry[k].phase # "ABSENT" /\ entry'[k].phase = "ABSENT" =>
        \/ entry[k].waiters = {} /\ (Flush \/ ShutdownEnd)
        \/ Waits(entry[k]) /\ AnswersTo(k) = {} /\ ShutdownEnd
        \/ \E r \in R : entry[k].waiters = {r} /\ Cleanup(r)]_vars

(***************************************************************************)
(* Inside a generation a verdict changes only by a mark.                   *)
(***************************************************************************)
VerdictProp ==
    [][\A k \in K :
        entry[k].phase = "RESOLVED" /\ entry[k].gen = entry'[k].gen =>
            \/ <<entry[k].verdict, entry[k].error>> = <<entry'[k].verdict, entry'[k].error>>
            \/ MarkMiss(k) /\ entry'[k].verdict = "F"
            \/ MarkHit(k) /\ entry'[k].verdict = "T"]_vars

(***************************************************************************)
(* Flush: nothing is left unread, no question that was answered is still   *)
(* out, no verdict is left that nobody holds; and the whole batch goes, or *)
(* none of it.  The first lookup after a flush leaves nothing unread.      *)
(***************************************************************************)
FlushDrainsProp ==
    [][Flush => /\ results' = <<>> /\ due'
                /\ \A k \in K : AnswersTo(k) # {} => entry'[k].phase # "IN_FLIGHT"]_vars

LookupDrainsProp ==
    [][/\ due /\ ~due' => results' = <<>>
       /\ due /\ due' => ~\E r \in R, k \in K, a \in Replies : LookupOpen(r, k, a)]_vars

FlushSweepsProp ==
    [][Flush => \A k \in K : entry'[k].phase = "RESOLVED" => entry'[k].waiters # {}]_vars

\* Batches that still have a question out once all replies are read.
StillOut(b) == \E q \in b : entry[q[1]].phase = "IN_FLIGHT" /\ entry[q[1]].gen = q[2]
BatchesOut ==
    Cardinality({i \in DOMAIN queue : StillOut(queue[i])})
    + (IF Busy /\ StillOut(worker[2]) THEN 1 ELSE 0)

FlushSendsProp ==
    [][Flush => IF BatchesOut < MaxOut
                THEN batch' = {} /\ \A k \in batch : entry'[k].phase = "IN_FLIGHT"
                ELSE batch' = batch /\ queue' = queue]_vars

(***************************************************************************)
(* Marks.  A failed load makes a held verdict a miss that has no lifetime; *)
(* a completed store makes it a hit and is remembered while the question   *)
(* is out.  Nothing else about the entry changes, and what is not answered *)
(* yet is newer than a failed load.  (A mark that does nothing where it    *)
(* should is no step at all, and no property of steps sees it:             *)
(* GuaranteeInv in Told does.)                                             *)
(***************************************************************************)
MarkMissProp ==
    [][\A k \in K : MarkMiss(k) =>
        entry'[k] = IF entry[k].phase = "RESOLVED"
                    THEN [entry[k] EXCEPT !.verdict = "F", !.error = FALSE, !.age = "never"]
                    ELSE entry[k]]_vars

MarkHitProp ==
    [][\A k \in K : MarkHit(k) =>
        entry'[k] = CASE entry[k].phase = "RESOLVED" ->
                            [entry[k] EXCEPT !.verdict = "T", !.error = FALSE, !.age = Youth]
                      [] entry[k].phase = "IN_FLIGHT" -> [entry[k] EXCEPT !.stored = TRUE]
                      [] OTHER -> entry[k]]_vars

(***************************************************************************)
(* Reuse: an answer that came with no waiter can be taken until the next   *)
(* flush.  Whoever drains keeps it (unless that is the flush itself, or    *)
(* the lookup takes it at once), and who looks it up holds it and is told  *)
(* it: no second question.  An error or an aged verdict is asked again     *)
(* instead.                                                                *)
(***************************************************************************)
Unclaimed(en) == en.phase = "RESOLVED" /\ en.waiters = {}

ReuseProp ==
    [][\A k \in K :
        /\ entry[k].phase = "IN_FLIGHT" /\ AnswersTo(k) # {} /\ results' = <<>>
           /\ ~Flush /\ shut' # "closed"
              => entry'[k].phase = "RESOLVED" \/ (entry'[k].phase = "PENDING" /\ "E" \in AnswersTo(k))
        /\ Unclaimed(entry[k]) /\ ~entry[k].error /\ entry[k].age # "old" =>
              \A r \in R, a \in Replies :
                  Lookup(r, k, a) => a = entry[k].verdict
                                     /\ entry'[k] = [entry[k] EXCEPT !.waiters = {r}]]_vars

(***************************************************************************)
(* Re-asks.  An error is asked again for a new request and only then, and  *)
(* all who held it are excused; a verdict past its lifetime is asked again *)
(* for anybody, and nobody is excused; nothing else is ever asked again.   *)
(***************************************************************************)
AskedAgain(k) == entry[k].phase = "RESOLVED" /\ entry'[k].phase = "PENDING"

ReaskProp ==
    [][\A k \in K :
        /\ AskedAgain(k) =>
              \E r \in R :
                 /\ entry'[k].waiters = entry[k].waiters \cup {r}
                 /\ \/ entry[k].error /\ r \notin entry[k].waiters
                       /\ entry'[k].excused = entry[k].waiters
                    \/ entry[k].age = "old" /\ ~(entry[k].error /\ r \notin entry[k].waiters)
                       /\ entry'[k].excused = {}
        /\ entry[k].phase = "RESOLVED" /\ (entry[k].error \/ entry[k].age = "old") =>
              \A r \in R, a \in Replies :
                 LookupOpen(r, k, a) /\ (r \notin entry[k].waiters \/ entry[k].age = "old")
                    => AskedAgain(k)
        /\ entry[k].phase = "IN_FLIGHT" /\ entry'[k].phase = "PENDING" =>
              \E r \in R \ entry[k].waiters :
                 /\ entry'[k].waiters = entry[k].waiters \cup {r}
                 /\ entry'[k].excused = entry[k].waiters]_vars

(***************************************************************************)
(* 11. What lookup returns, if not "none", is the verdict of the entry, or *)
(* "F" by excuse, deadline or shutdown.                                    *)
(***************************************************************************)
Honest(r, k, reply) ==      \* to be read after the step
    CASE reply = "none" -> /\ shut' = "open" /\ Waits(entry'[k])
                           /\ r \notin entry'[k].excused /\ ~entry'[k].late
      [] reply = "T"    -> entry'[k].verdict = "T"
      [] reply = "F"    -> \/ entry'[k].verdict = "F"
                           \/ Waits(entry'[k]) /\ (r \in entry'[k].excused \/ entry'[k].late)
                           \/ shut' = "closed" /\ entry'[k].phase = "ABSENT"

ReplyProp == [][\A r \in R, k \in K, a \in Replies : Lookup(r, k, a) => Honest(r, k, a)]_vars

(***************************************************************************)
(* Once the stop flag is set no batch is taken up.  (One whose flag was    *)
(* read unset just before may still be called.)                            *)
(* If shutdown need not give up waiting, every question that was sent is   *)
(* answered when it returns.                                               *)
(***************************************************************************)
TakesUp == worker[1] = "idle" /\ worker'[1] = "read"

StopProp == [][TakesUp => shut \in {"open", "sentinel"}]_vars

AnsweredProp ==
    [][shut = "sentinel" /\ shut' = "closed" =>
        \A k \in K : entry[k].phase = "IN_FLIGHT" => AnswersTo(k) # {}]_vars

(***************************************************************************)
(* First in, first out: batches are taken up in the order in which they    *)
(* were sent, and a reply is put behind those that were published before.  *)
(***************************************************************************)
Extends(longer, s) == Len(longer) >= Len(s) /\ SubSeq(longer, 1, Len(s)) = s

FifoProp ==
    [][/\ IF TakesUp THEN queue = <<worker'[2]>> \o queue' ELSE Extends(queue', queue)
       /\ results' = <<>> \/ Extends(results', results)]_vars
=============================================================================
