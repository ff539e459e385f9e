--------------------------------- MODULE Told --------------------------------
(***************************************************************************)
(* What a single request may rely on, over as many steps as it likes; and  *)
(* how often the back end is called.  Both need a memory that the machine  *)
(* does not have, so this module runs the machine and keeps a diary beside *)
(* it: two HISTORY VARIABLES, which every step writes and no step reads.   *)
(*                                                                         *)
(* may[r][k]: what request r may be told about key k if it asks now.       *)
(*   Without a hold, anything; while it was told nothing but "none",       *)
(*   anything.  After "T": "T" again, and "F" too once a load failed.      *)
(*   After an "F" with a verdict behind it: "F" again, and "T" too once a  *)
(*   store completed.  An "F" without a verdict behind it (the deadline,   *)
(*   an excuse, a failed question) is marked "till answered": an answer    *)
(*   may still make it "T".  A request that is told what it may not be     *)
(*   told can be told nothing any more: the empty set, which is what       *)
(*   GuaranteeInv looks for.                                               *)
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

\* What r may be told about k after this step, before the step itself told it anything.
StillMay(r, k) ==
    CASE k \notin held'[r] -> Anything
      [] entry[k].phase = "IN_FLIGHT" /\ entry'[k].phase # "IN_FLIGHT"
         /\ "till answered" \in may[r][k] -> may[r][k] \cup {"T"}
      [] OTHER -> may[r][k]

AfterReply(allowed, reply, en) ==
    CASE reply \notin allowed -> {}
      [] reply = "none" -> Anything
      [] reply = "T" -> {"T"}
      [] reply = "F" -> IF en.phase = "RESOLVED" /\ ~en.error THEN {"F"} ELSE {"F", "till answered"}

AfterMark(allowed, forced) ==
    IF allowed \cap {"T", "F"} = {} THEN allowed ELSE allowed \cup {forced}

Hears(r, k, reply) ==
    may' = [q \in R |-> [j \in K |->
              IF q = r /\ j = k /\ k \in held'[r]
              THEN AfterReply(StillMay(r, k), reply, entry'[k])
              ELSE StillMay(q, j)]]

HearsMark(k, forced) ==
    may' = [q \in R |-> [j \in K |->
              IF j = k THEN AfterMark(may[q][j], forced) ELSE may[q][j]]]

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
\*     question that failed and was asked again.
GuaranteeInv == \A r \in R, k \in K : may[r][k] # {}

\* 8. The back end is called at most once for a question.
CallOnceInv == \A q \in DOMAIN calls : calls[q] <= 1
=============================================================================
