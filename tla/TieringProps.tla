---------------------------- MODULE TieringProps -----------------------------
(***************************************************************************)
(* What must hold of every single STEP of the tiers (how to read an action *)
(* property: see the head of AsyncLookupProps), and the variant: why       *)
(* waiting ends.                                                           *)
(***************************************************************************)
EXTENDS Tiering

(***************************************************************************)
(* The variant.  A request has for each key a rank:                        *)
(*                                                                         *)
(*   3  no verdict: nobody has said where the block is                     *)
(*   2  a verdict: the tier has it                                         *)
(*   1  it waits for a write of it                                         *)
(*   0  nothing left to wait for                                           *)
(*                                                                         *)
(* A rank never grows, whatever the request and all others do, unless it   *)
(* is preempted and starts over.  And a pass that defers has met a         *)
(* question that is open or a write that is under way.  Both end, if steps *)
(* go on and writers report; with them the rank falls; so deferrals end.   *)
(* No timeout is needed, and no slot is waited for.                        *)
(***************************************************************************)
Seeks(me) == me.phase \in {"waiting", "found"}
UnderWay(sl, me, k) ==
    \E s \in Slots :
        /\ Writing(sl[s]) /\ ~sl[s].dropped
        /\ sl[s].key = k /\ <<k, sl[s].write>> \in me.waits
RankOf(sl, me, k) ==
    CASE k \in me.settled                -> 0
      [] UnderWay(sl, me, k)              -> 1
      [] \E v \in me.waits : v[1] = k    -> 0
      [] k \in me.notes                  -> 2
      [] OTHER                           -> 3

RankProp ==
    [][\A r \in R :
        Seeks(req[r]) /\ Seeks(req'[r]) /\ req[r].preempted = req'[r].preempted =>
            \A k \in K : RankOf(slot', req'[r], k) <= RankOf(slot, req[r], k)]_vars

Deferred(r) == ~req[r].passed /\ req'[r].passed /\ req'[r].phase = "waiting"
DeferProp ==
    [][\A r \in R : Deferred(r) =>
        \/ Busy(req[r])
        \/ \E i \in DOMAIN Prompt[r] :
              \/ Prompt[r][i] \in req'[r].asked
              \/ RankOf(slot', req'[r], Prompt[r][i]) = 1]_vars

(***************************************************************************)
(* What is readable and held stays, held by a read, a pin or a waiter.     *)
(* (A reset is the one thing that takes it from who only waits.)           *)
(***************************************************************************)
HeldBlock(b) == b.ready /\ ~b.dropped /\ (b.refs > 0 \/ b.pinned \/ b.waiters # <<>>)
KeptProp ==
    [][\A s \in Slots : HeldBlock(slot[s]) => SameWrite(slot[s], slot'[s]) \/ Reset]_vars

(***************************************************************************)
(* The budget.  After a promotion there are not more slots that requests   *)
(* wait for than the budget allows.  (There may be more at other times: to *)
(* join a write is never refused, and what is stored, or loaded for a      *)
(* request that left, counts only when somebody joins.)                    *)
(***************************************************************************)
BudgetProp == [][queue' \ queue # {} => Awaited(slot') <= Budget]_vars

(***************************************************************************)
(* A job is there until the tier reports it, and its slots until then with *)
(* it; a job begins at the end of a step or of a store.                    *)
(***************************************************************************)
JobProp ==
    [][/\ \A j \in jobs \ jobs' : \E good \in SUBSET KeysOf(j) : Reported(j, good)
       /\ jobs' \ jobs # {} => \/ \E refused \in SUBSET R : StepEnd(refused)
                               \/ \E r \in R : CompleteStore(r, TRUE)]_vars
=============================================================================
