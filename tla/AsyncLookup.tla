----------------------------- MODULE AsyncLookup -----------------------------
(***************************************************************************)
(* The lifecycle of a probe: the question "is this block in that slow      *)
(* tier?", asked for many requests at once, answered later by a worker.    *)
(*                                                                         *)
(* How to read this if you know Python and not TLA+.  A VARIABLE is an     *)
(* attribute of the machine.  An operator with `==' is a function; it      *)
(* never changes anything.  An ACTION is an operator that mentions primed  *)
(* variables: x' is x after the step.  /\ is `and', \/ is `or', and an     *)
(* action is enabled when its unprimed conditions hold.  A function        *)
(* [k \in K |-> e] is {k: e for k in K}; f[k] is f[k]; a record            *)
(* [a |-> 1] is an object with the attribute a; [f EXCEPT ![k].a = 1] is a  *)
(* copy of f with f[k].a replaced, and @ in it is the old value.           *)
(* <<a, b>> is a tuple, and a sequence counts from 1.  More is in the      *)
(* README of this folder.                                                  *)
(*                                                                         *)
(* Every method of the real manager is ONE action here, because one caller *)
(* owns the table and nothing happens inside a call.  The worker is the    *)
(* other party, and its moves fall between the caller's.  The two meet in  *)
(* two queues: questions out, replies back.                                *)
(*                                                                         *)
(* What must hold of every state is said at the end; what must hold of     *)
(* every step is in AsyncLookupProps, over many steps in Told and Live.    *)
(* Left out: bounds, symmetry and known bugs (they belong to the MC        *)
(* modules and to Mutants), and scopes, which share nothing: this is one.  *)
(* Time is two actions: a deadline passes, a verdict ages.                 *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    K,          \* the keys
    R,          \* the requests
    MaxOut,     \* so many batches may be with the worker at once
    Features    \* which of the things below can happen at all

AllFeatures == {"errors", "marks", "deadline", "lifetime", "hang", "shutdown"}
ASSUME MaxOut \in Nat \ {0} /\ Features \subseteq AllFeatures

VARIABLES
    entry,      \* key -> its entry (or Absent)
    held,       \* request -> the keys that it joined: the reverse index
    batch,      \* the keys asked for and not yet sent
    due,        \* the next lookup must drain first (there was a flush)
    queue,      \* batches sent to the worker; a batch is a set of <<key, generation>>
    worker,     \* what the worker does: <<state, batch>>
    results,    \* replies published; a reply is a set of <<key, generation, answer>>
    shut        \* "open", "sentinel", "flag", "closed": how far shutdown has come

vars == <<entry, held, batch, due, queue, worker, results, shut>>

(***************************************************************************)
(* Entries.  `late': the deadline of this generation has passed.  `age' of *)
(* a verdict: "young", "old" (past its lifetime), "never" (it has none);   *)
(* "none" without a verdict.                                               *)
(***************************************************************************)
Absent == [phase |-> "ABSENT", gen |-> 0, verdict |-> "none", waiters |-> {},
           error |-> FALSE, stored |-> FALSE, excused |-> {},
           late |-> FALSE, age |-> "none"]

Has(k) == entry[k].phase # "ABSENT"
Youth == IF "lifetime" \in Features THEN "young" ELSE "never"

Asked(g, waiters, excused) ==
    [Absent EXCEPT !.phase = "PENDING", !.gen = g, !.waiters = waiters, !.excused = excused]

(***************************************************************************)
(* Generations.  A new question needs a number that nothing refers to: no  *)
(* entry, no question that is out.  Which number is all the same, because  *)
(* numbers are compared with one another and nothing else.  The code       *)
(* counts; NextGen takes a number above all that are in use; a model       *)
(* checker needs finitely many, so the MC modules replace NextGen by the   *)
(* least number that is not in use (and MCCount counts, to a cap).         *)
(* `e' are the entries, `rs' the replies that nobody has read.             *)
(***************************************************************************)
RangeOf(s) == {s[i] : i \in DOMAIN s}
Questions(reply) == {<<a[1], a[2]>> : a \in reply}
Busy == worker[1] \in {"read", "call", "hung"}
OutWithWorker == UNION RangeOf(queue) \cup (IF Busy THEN worker[2] ELSE {})
Unread(rs) == UNION {Questions(rs[i]) : i \in DOMAIN rs}
GensInUse(e, rs) ==
    {e[k].gen : k \in {j \in K : e[j].phase # "ABSENT"}} \cup {q[2] : q \in OutWithWorker \cup Unread(rs)}

Max(S) == CHOOSE x \in S : \A y \in S : y <= x
NextGen(e, rs) == 1 + Max({0} \cup GensInUse(e, rs))

(***************************************************************************)
(* Draining: the replies are applied in the order in which they came.  An  *)
(* answer counts only for the generation that asked.  "E" is the answer of *)
(* a question that failed: it reads as a miss, and the error is remembered.*)
(* A block that was stored while its question was out is there, whatever   *)
(* the tier answered.  A verdict that finds no waiter stays: it is         *)
(* unclaimed until the next flush, which sweeps it.                        *)
(***************************************************************************)
Matches(e, a) == e[a[1]].phase = "IN_FLIGHT" /\ e[a[1]].gen = a[2]

Resolved(en, answer) ==
    LET yes == answer = "T" \/ en.stored
    IN  [Absent EXCEPT !.phase = "RESOLVED", !.gen = en.gen, !.waiters = en.waiters,
                       !.verdict = IF yes THEN "T" ELSE "F",
                       !.error = (answer = "E" /\ ~yes), !.age = Youth]

Answered(e, reply) ==
    [k \in K |->
        LET mine == {a \in reply : a[1] = k /\ Matches(e, a)}
        IN  IF mine = {} THEN e[k] ELSE Resolved(e[k], (CHOOSE a \in mine : TRUE)[3])]

RECURSIVE Drained(_, _)
Drained(e, rs) == IF rs = <<>> THEN e ELSE Drained(Answered(e, Head(rs)), Tail(rs))

Swept(e) == [k \in K |-> IF e[k].phase = "RESOLVED" /\ e[k].waiters = {} THEN Absent ELSE e[k]]

(***************************************************************************)
(* Lookup: join, then drain if there was a flush, then answer.             *)
(*                                                                         *)
(* Nothing known: a question is born.  A failed question, and somebody who *)
(* was not waiting for it: it is asked again, and those who waited are     *)
(* excused, that is, they go on reading "no" meanwhile.  A verdict past    *)
(* its lifetime: asked again, and nobody is excused.  The first that fits. *)
(***************************************************************************)
Joined(e, r, k) == IF e[k].phase = "ABSENT" THEN e ELSE [e EXCEPT ![k].waiters = @ \cup {r}]
AfterDrain(e) == IF due THEN Drained(e, results) ELSE e
JoinedThenDrained(r, k) == AfterDrain(Joined(entry, r, k))
UnreadAfter == IF due THEN <<>> ELSE results

Excuses(en, r) == en.waiters \ {r}
AsksAgain(en, isnew) == en.phase = "RESOLVED" /\ en.error /\ isnew
TooOld(en) == en.phase = "RESOLVED" /\ en.age = "old"

Looked(e, r, k, isnew, g) ==
    CASE e[k].phase = "ABSENT"      -> [e EXCEPT ![k] = Asked(g, {r}, {})]
      [] AsksAgain(e[k], isnew)     -> [e EXCEPT ![k] = Asked(g, @.waiters, Excuses(@, r))]
      [] TooOld(e[k])               -> [e EXCEPT ![k] = Asked(g, @.waiters, {})]
      [] OTHER                      -> e

Reply(en, r) ==
    IF en.phase = "RESOLVED" THEN en.verdict
    ELSE IF r \in en.excused \/ en.late THEN "F"
    ELSE "none"

LookupOpen(r, k, reply) ==
    LET isnew == r \notin entry[k].waiters
        seen  == JoinedThenDrained(r, k)
        after == Looked(seen, r, k, isnew, NextGen(seen, UnreadAfter))
    IN  /\ shut = "open"
        /\ reply = Reply(after[k], r)
        /\ entry' = after
        /\ held' = [held EXCEPT ![r] = @ \cup {k}]
        /\ batch' = IF after[k].phase = "PENDING" THEN batch \cup {k} ELSE batch
        /\ due' = FALSE
        /\ results' = UnreadAfter
        /\ UNCHANGED <<queue, worker, shut>>

LookupClosed(r, k, reply) ==
    /\ shut = "closed"
    /\ reply = IF Has(k) THEN entry[k].verdict ELSE "F"
    /\ UNCHANGED vars

Lookup(r, k, reply) == LookupOpen(r, k, reply) \/ LookupClosed(r, k, reply)

(***************************************************************************)
(* Flush, at the end of a step: drain, sweep, send.  The whole batch goes, *)
(* or, with MaxOut batches out, none of it.                                *)
(***************************************************************************)
OutNow == Len(queue) + (IF Busy THEN 1 ELSE 0)
FlushDrained == Drained(entry, results)
FlushUnread == <<>>
BatchAfterSend == {}

Flush ==
    LET e    == Swept(FlushDrained)
        send == batch # {} /\ OutNow < MaxOut
    IN  /\ shut = "open"
        /\ results' = FlushUnread
        /\ due' = TRUE
        /\ IF send
           THEN /\ entry' = [k \in K |-> IF k \in batch THEN [e[k] EXCEPT !.phase = "IN_FLIGHT"] ELSE e[k]]
                /\ queue' = Append(queue, {<<k, e[k].gen>> : k \in batch})
                /\ batch' = BatchAfterSend
           ELSE /\ entry' = e
                /\ UNCHANGED <<queue, batch>>
        /\ UNCHANGED <<held, worker, shut>>

Drain ==
    /\ shut = "open"
    /\ results # <<>>
    /\ entry' = Drained(entry, results)
    /\ results' = <<>>
    /\ due' = FALSE
    /\ UNCHANGED <<held, batch, queue, worker, shut>>

(***************************************************************************)
(* Marks.  A failed load makes a held verdict a miss, without a lifetime.  *)
(* A completed store makes it a hit, and the one that is still out too.    *)
(***************************************************************************)
ForcedAge == "never"
Missed(en) ==
    IF en.phase = "RESOLVED"
    THEN [en EXCEPT !.verdict = "F", !.error = FALSE, !.age = ForcedAge]
    ELSE en
Stored(en) ==
    CASE en.phase = "RESOLVED"  -> [en EXCEPT !.verdict = "T", !.error = FALSE, !.age = Youth]
      [] en.phase = "IN_FLIGHT" -> [en EXCEPT !.stored = TRUE]
      [] OTHER                  -> en

Marks == "marks" \in Features /\ shut \in {"open", "closed"}

MarkMiss(k) ==
    /\ Marks
    /\ entry' = [entry EXCEPT ![k] = Missed(@)]
    /\ UNCHANGED <<held, batch, due, queue, worker, results, shut>>

MarkHit(k) ==
    /\ Marks
    /\ entry' = [entry EXCEPT ![k] = Stored(@)]
    /\ UNCHANGED <<held, batch, due, queue, worker, results, shut>>

(***************************************************************************)
(* Cleanup: a request lets go of all it joined.  With nobody left, a       *)
(* question that was not sent is taken back and a verdict goes; a question *)
(* that is out stays, for whoever asks next.                               *)
(***************************************************************************)
GoesWithLast(en) == en.phase # "IN_FLIGHT"
LetGo(en, r) ==
    LET left == [en EXCEPT !.waiters = @ \ {r}, !.excused = @ \ {r}]
    IN  IF left.waiters = {} /\ GoesWithLast(left) THEN Absent ELSE left
StillAsked(e) == {k \in batch : e[k].phase = "PENDING"}
Forgotten(r) == [held EXCEPT ![r] = {}]

Cleanup(r) ==
    LET e == [k \in K |-> IF k \in held[r] THEN LetGo(entry[k], r) ELSE entry[k]]
    IN  /\ shut \in {"open", "closed"}
        /\ held[r] # {}
        /\ entry' = e
        /\ batch' = StillAsked(e)
        /\ held' = Forgotten(r)
        /\ UNCHANGED <<due, queue, worker, results, shut>>

(***************************************************************************)
(* The worker.  It reads the stop flag, then calls: two steps, because a   *)
(* flag that was read unset may be set before the call begins.  A call     *)
(* answers, fails (one answer "E" for every key of it: answers that cannot *)
(* be matched with keys are no answers), or never returns.                 *)
(***************************************************************************)
Idle == <<"idle", {}>>
Ended == <<"stopped", {}>>
FlagUnset == shut \in {"open", "sentinel"}
NextBatch == Head(queue)
LaterBatches == Tail(queue)

WorkerTake ==
    /\ worker = Idle
    /\ \/ /\ queue # <<>> /\ FlagUnset
          /\ worker' = <<"read", NextBatch>>
          /\ queue' = LaterBatches
       \/ /\ shut \in {"flag", "closed"} \/ (shut = "sentinel" /\ queue = <<>>)
          /\ worker' = Ended
          /\ UNCHANGED queue
    /\ UNCHANGED <<entry, held, batch, due, results, shut>>

WorkerCall ==
    /\ worker[1] = "read"
    /\ worker' = <<"call", worker[2]>>
    /\ UNCHANGED <<entry, held, batch, due, queue, results, shut>>

Truth(b, yes) == {<<q[1], q[2], IF q[1] \in yes THEN "T" ELSE "F">> : q \in b}
Published(reply) == reply
Failed(b) == {<<q[1], q[2], "E">> : q \in b}
FailurePublished == Append(results, Failed(worker[2]))
AfterFailure == Idle

WorkerAnswer(yes) ==
    /\ worker[1] = "call"
    /\ yes \subseteq {q[1] : q \in worker[2]}
    /\ results' = Append(results, Published(Truth(worker[2], yes)))
    /\ worker' = Idle
    /\ UNCHANGED <<entry, held, batch, due, queue, shut>>

WorkerFails ==
    /\ "errors" \in Features
    /\ worker[1] = "call"
    /\ results' = FailurePublished
    /\ worker' = AfterFailure
    /\ UNCHANGED <<entry, held, batch, due, queue, shut>>

WorkerHang ==
    /\ "hang" \in Features
    /\ worker[1] = "call"
    /\ worker' = <<"hung", worker[2]>>
    /\ UNCHANGED <<entry, held, batch, due, queue, results, shut>>

(***************************************************************************)
(* Time.  It matters only while the caller can ask.                        *)
(***************************************************************************)
DeadlinePasses(k) ==
    /\ "deadline" \in Features /\ shut = "open"
    /\ entry[k].phase \in {"PENDING", "IN_FLIGHT"} /\ ~entry[k].late
    /\ entry' = [entry EXCEPT ![k].late = TRUE]
    /\ UNCHANGED <<held, batch, due, queue, worker, results, shut>>

VerdictAges(k) ==
    /\ shut = "open"
    /\ entry[k].age = "young"
    /\ "lifetime" \in Features
    /\ entry' = [entry EXCEPT ![k].age = "old"]
    /\ UNCHANGED <<held, batch, due, queue, worker, results, shut>>

(***************************************************************************)
(* Shutdown: a sentinel behind everything queued; wait for the worker, at  *)
(* most so long; then, if need be, the flag; then drain, sweep, and delete *)
(* what has no answer.  The caller is inside this call all the while, so   *)
(* only the worker moves.                                                  *)
(***************************************************************************)
ShutdownBegin ==
    /\ "shutdown" \in Features
    /\ shut = "open"
    /\ shut' = "sentinel"
    /\ UNCHANGED <<entry, held, batch, due, queue, worker, results>>

GivesUp == shut = "sentinel" /\ worker # Ended
ShutdownTimeout ==
    /\ GivesUp
    /\ shut' = "flag"
    /\ UNCHANGED <<entry, held, batch, due, queue, worker, results>>

Closed(e) == [k \in K |-> IF e[k].phase \in {"PENDING", "IN_FLIGHT"} THEN Absent ELSE e[k]]
MayEnd == shut = "flag" \/ (shut = "sentinel" /\ worker = Ended)

ShutdownEnd ==
    LET e == Closed(Swept(Drained(entry, results)))
    IN  /\ MayEnd
        /\ entry' = e
        /\ held' = [r \in R |-> {k \in held[r] : e[k].phase # "ABSENT"}]
        /\ batch' = StillAsked(e)
        /\ due' = FALSE
        /\ results' = <<>>
        /\ shut' = "closed"
        /\ UNCHANGED <<queue, worker>>

(***************************************************************************)
(* The machine.                                                            *)
(***************************************************************************)
Init ==
    /\ entry = [k \in K |-> Absent]
    /\ held = [r \in R |-> {}]
    /\ batch = {} /\ due = FALSE
    /\ queue = <<>> /\ worker = Idle /\ results = <<>>
    /\ shut = "open"

Caller ==
    \/ \E r \in R, k \in K, reply \in {"none", "T", "F"} : Lookup(r, k, reply)
    \/ Flush \/ Drain
    \/ \E k \in K : MarkMiss(k) \/ MarkHit(k)
    \/ \E r \in R : Cleanup(r)
    \/ ShutdownBegin \/ ShutdownTimeout \/ ShutdownEnd
Worker == WorkerTake \/ WorkerCall \/ (\E yes \in SUBSET K : WorkerAnswer(yes)) \/ WorkerFails \/ WorkerHang
Time == \E k \in K : DeadlinePasses(k) \/ VerdictAges(k)

Next == Caller \/ Worker \/ Time
Spec == Init /\ [][Next]_vars

(***************************************************************************)
(* What must hold of every state.  The numbers are those of the list in    *)
(* the specification; 1 and 11 are about steps: see AsyncLookupProps.      *)
(***************************************************************************)
Batches == {queue[i] : i \in DOMAIN queue} \cup (IF Busy THEN {worker[2]} ELSE {})
OutOf(k) ==     \* how many questions of k are out: queued, with the worker, or answered and not read
    Cardinality({<<"q", i>> : i \in {j \in DOMAIN queue : \E q \in queue[j] : q[1] = k}})
  + (IF Busy /\ \E q \in worker[2] : q[1] = k THEN 1 ELSE 0)
  + Cardinality({<<"r", i>> : i \in {j \in DOMAIN results : \E a \in results[j] : a[1] = k}})
GensOut(k) == {q[2] : q \in {p \in OutWithWorker \cup Unread(results) : p[1] = k}}

TypeInv ==
    /\ \A k \in K : entry[k].phase \in {"ABSENT", "PENDING", "IN_FLIGHT", "RESOLVED"}
                    /\ entry[k].waiters \subseteq R /\ entry[k].excused \subseteq R
    /\ batch \subseteq K /\ due \in BOOLEAN
    /\ worker[1] \in {"idle", "read", "call", "hung", "stopped"}
    /\ shut \in {"open", "sentinel", "flag", "closed"}

\* 2. At most one answer per question: nothing is out twice.
AnswerOnceInv == \A k \in K : OutOf(k) <= 1

\* 3. Conservation: until the stop flag is set, IN_FLIGHT means exactly one question out, and
\*    of this generation. After it nothing is IN_FLIGHT.
ConservationInv ==
    /\ shut \in {"open", "sentinel"} =>
         \A k \in K : IF entry[k].phase = "IN_FLIGHT"
                      THEN OutOf(k) = 1 /\ GensOut(k) = {entry[k].gen}
                      ELSE OutOf(k) = 0
    /\ shut = "closed" => \A k \in K : entry[k].phase # "IN_FLIGHT"

\* 4. A verdict is held exactly in RESOLVED.
VerdictInv == \A k \in K : (entry[k].verdict # "none") <=> (entry[k].phase = "RESOLVED")

\* 5. Waiters and reverse index agree.
IndexInv == \A k \in K, r \in R : (r \in entry[k].waiters) <=> (k \in held[r])

\* 6. A question that was not sent has somebody who wants it.
WaiterInv == \A k \in K : entry[k].phase = "PENDING" => entry[k].waiters # {}

\*    A verdict without a waiter is one that came since the last flush: that flush left none,
\*    and set `due', which the next drain clears.
UnclaimedInv ==
    \A k \in K : entry[k].phase = "RESOLVED" /\ entry[k].waiters = {} => ~due /\ shut # "closed"

\* 7. The batch is exactly the PENDING entries.
BatchInv == \A k \in K : (k \in batch) <=> (entry[k].phase = "PENDING")

\* 9. After shutdown no question is left.  (8, CallOnceInv, needs a history: it is in Told.)
ClosedInv == shut = "closed" => \A k \in K : entry[k].phase \in {"ABSENT", "RESOLVED"}

\*    No more than MaxOut batches are out, a reply that nobody has read included.
BoundInv == Len(queue) + (IF Busy THEN 1 ELSE 0) + Len(results) <= MaxOut

\* 10. The marks, each only where it means something; and an absent entry remembers nothing.
MarksInv ==
    \A k \in K :
        /\ entry[k].error => entry[k].phase = "RESOLVED" /\ entry[k].verdict = "F"
        /\ entry[k].stored => entry[k].phase = "IN_FLIGHT"
        /\ entry[k].excused \subseteq entry[k].waiters
        /\ entry[k].phase = "RESOLVED" => entry[k].excused = {}
        /\ entry[k].phase = "ABSENT" => entry[k] = Absent
=============================================================================
