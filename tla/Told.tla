--------------------------------- MODULE Told --------------------------------
(***************************************************************************)
(* What a single request may rely on, over as many steps as it likes; and  *)
(* how often the back end is called.  Both need a memory that the machine  *)
(* does not have, so this module runs the machine and keeps a diary beside *)
(* it: two HISTORY VARIABLES, which every step writes and no step reads.   *)
(*                                                                         *)
(* may[r][k]: what request r may be told about key k if it asks now.       *)
(*   Without a hold, anything (after shutdown: what is held, or "F");      *)
(*   while it was told nothing but "none", anything.  After a bool: that bool again.  A failed load makes it "F" *)
(*   from now on, a completed store "T".  Two words stand for what is      *)
(*   still to come.  "maybe": the "F" that was told has no verdict behind  *)
(*   it (the deadline passed, the request is excused, the question failed),*)
(*   so an answer may yet make it "T".  "surely": the block was stored     *)
(*   while the question was out, so the answer will be "T" whatever the    *)
(*   tier says.  A request that is told what it may not be told can be     *)
(*   told nothing any more: the empty set, which is what GuaranteeInv      *)
(*   looks for.                                                            *)
(* calls: for every question that something still refers to, how often the *)
(*   back end was called with it.  What nothing refers to is forgotten: it *)
(*   cannot be called again, and its number may be given away anew.        *)
(*                                                                         *)
(* The guarantee is for verdicts without a lifetime; with one, a request   *)
(* that was told a bool can be told "none" again (false/guarantee_with_    *)
(* lifetime.cfg shows how).                                                *)
(***************************************************************************)
EXTENDS AsyncLookup

VARIABLES may, calls

toldVars == <<entry, held, batch, due, queue, worker, results, shut, may, calls>>

Anything == {"none", "T", "F"}

\* Without a hold a request may be told anything; but after shutdown nobody is told to ask again:
\* lookup reads what is held, or "F".
Free(k) ==
    IF shut' = "closed"
    THEN {IF entry'[k].verdict = "none" THEN "F" ELSE entry'[k].verdict}
    ELSE Anything

\* What r may be told about k after this step, before the step itself told it anything.
StillMay(r, k) ==
    LET answered == entry[k].phase = "IN_FLIGHT" /\ entry'[k].phase # "IN_FLIGHT"
    IN  CASE k \notin held'[r] -> Free(k)
          [] answered /\ "surely" \in may[r][k] -> {"T"}
          [] answered /\ "maybe" \in may[r][k] -> may[r][k] \cup {"T"}
          [] OTHER -> may[r][k]

AfterReply(allowed, reply, en) ==
    CASE reply = "none" -> allowed
      [] reply = "T" -> {"T"}
      [] reply = "F" -> IF en.phase = "RESOLVED" /\ ~en.error THEN {"F"}
                        ELSE {"F", "maybe"} \cup (allowed \cap {"surely"})

AfterMark(allowed, forced, en) ==
    CASE en.phase = "RESOLVED" -> {forced}
      [] en.phase = "IN_FLIGHT" /\ forced = "T" -> allowed \cup {"surely"}
      [] OTHER -> allowed

Hears(r, k, reply) ==
    may' = [q \in R |-> [j \in K |->
              CASE <<q, j>> # <<r, k>>         -> StillMay(q, j)
                [] reply \notin StillMay(r, k) -> {}
                [] k \in held'[r]              -> AfterReply(StillMay(r, k), reply, entry'[k])
                [] OTHER                       -> Free(k)]]

HearsMark(k, forced) ==
    may' = [q \in R |-> [j \in K |->
              IF j = k /\ k \in held[q]
              THEN AfterMark(may[q][j], forced, entry[k])
              ELSE StillMay(q, j)]]

HearsNothing == may' = [q \in R |-> [j \in K |-> StillMay(q, j)]]

\* The questions that something refers to.
Referred(e, q, w, rs) ==
    {<<k, e[k].gen>> : k \in {j \in K : e[j].phase # "ABSENT"}}
    \cup UNION RangeOf(q)
    \cup (IF w[1] \in {"read", "call", "hung"} THEN w[2] ELSE {})
    \cup Unread(rs)

Counts ==
    LET begun == IF worker[1] = "read" /\ worker'[1] = "call" THEN worker[2] ELSE {}
    IN  calls' = [q \in Referred(entry', queue', worker', results') |->
                    (IF q \in DOMAIN calls THEN calls[q] ELSE 0) + (IF q \in begun THEN 1 ELSE 0)]

ToldInit ==
    /\ Init
    /\ may = [r \in R |-> [k \in K |-> Anything]]
    /\ calls = [q \in {} |-> 0]

\* The actions of the machine, each with its line in the diary.
Unheard == HearsNothing /\ Counts

ToldLookup(r, k, reply) == Lookup(r, k, reply) /\ Hears(r, k, reply) /\ Counts
ToldMarkMiss(k)     == MarkMiss(k) /\ HearsMark(k, "F") /\ Counts
ToldMarkHit(k)      == MarkHit(k) /\ HearsMark(k, "T") /\ Counts
ToldFlush           == Flush /\ Unheard
ToldDrain           == Drain /\ Unheard
ToldCleanup(r)      == Cleanup(r) /\ Unheard
ToldShutdownBegin   == ShutdownBegin /\ Unheard
ToldShutdownTimeout == ShutdownTimeout /\ Unheard
ToldShutdownEnd     == ShutdownEnd /\ Unheard
ToldWorkerTake      == WorkerTake /\ Unheard
ToldWorkerCall      == WorkerCall /\ Unheard
ToldWorkerAnswer(y) == WorkerAnswer(y) /\ Unheard
ToldWorkerFails     == WorkerFails /\ Unheard
ToldWorkerHang      == WorkerHang /\ Unheard
ToldDeadlinePasses(k) == DeadlinePasses(k) /\ Unheard
ToldVerdictAges(k)  == VerdictAges(k) /\ Unheard

ToldNext ==
    \/ \E r \in R, k \in K, reply \in {"none", "T", "F"} : ToldLookup(r, k, reply)
    \/ \E k \in K : ToldMarkMiss(k) \/ ToldMarkHit(k) \/ ToldDeadlinePasses(k) \/ ToldVerdictAges(k)
    \/ \E r \in R : ToldCleanup(r)
    \/ ToldFlush \/ ToldDrain
    \/ ToldShutdownBegin \/ ToldShutdownTimeout \/ ToldShutdownEnd
    \/ ToldWorkerTake \/ ToldWorkerCall \/ (\E yes \in SUBSET K : ToldWorkerAnswer(yes))
    \/ ToldWorkerFails \/ ToldWorkerHang

ToldSpec == ToldInit /\ [][ToldNext]_toldVars

\* 11. Per hold, and without a lifetime: "none" some times, then bools only; "T" turns "F" only by
\*     a failed load; "F" turns "T" only by a completed store, a late answer, or the answer to a
\*     question that failed and was asked again. And a failed load and a completed store are
\*     obeyed: a step property cannot see that a mark did nothing, since that is no step.
GuaranteeInv == \A r \in R, k \in K : may[r][k] # {}

\* 8. The back end is called at most once for a question.
CallOnceInv == \A q \in DOMAIN calls : calls[q] <= 1
=============================================================================
