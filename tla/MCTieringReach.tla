--------------------------- MODULE MCTieringReach ----------------------------
(***************************************************************************)
(* What does happen.  Each of these says that something interesting never  *)
(* happens, and TLC must find that it does: else what is checked elsewhere *)
(* would be true for want of anything to check.                            *)
(***************************************************************************)
EXTENDS MCTiering

\* A hit is cut short for lack of room: the tier has the next block.
NeverCutShort ==
    \A r \in R : ~(/\ req[r].phase = "found" /\ req[r].end < Len(Prompt[r])
                   /\ Prompt[r][req[r].end + 1] \in req[r].notes
                   /\ ~\E v \in req[r].waits : v[1] = Prompt[r][req[r].end + 1])

\* More slots are waited for than the budget allows: a write was joined.
NeverBeyondBudget == Awaited(slot) <= Budget

\* Of one load a part made it: the same request waited for a block that is there and for one that
\* is not.
NeverPartly ==
    \A r \in R : ~\E v, w \in req[r].waits :
        /\ Here(slot, v[1]) /\ slot[SlotOf(slot, v[1])].ready /\ WriteOf(slot, v[1]) = v[2]
        /\ ~Here(slot, w[1])

\* A settled key turns up in the primary, and is part of a hit.
NeverSettledAndHit == \A r \in R : ~(req[r].phase = "found" /\ Needed(r) \cap req[r].settled # {})

\* A load runs on for a request that is gone, and another joins it.
NeverOrphanJoined ==
    ~\E j \in Loads : req[j.req].phase = "gone" /\ \E c \in j.claims : slot[c[1]].waiters # <<>>

\* A cascade is under way for a request that is gone.
NeverLateCascade == ~\E j \in Stores : req[j.req].phase = "gone"

\* A queued promotion is handed over.
NeverHandedOver ==
    [][\A c \in queue : c \in queue' /\ slot'[c[1]].waiters # <<>> =>
          slot'[c[1]].waiters[1] = slot[c[1]].waiters[1]]_vars

\* A queued promotion is dropped, and not handed to the tier.
NeverDropped == [][queue \ queue' # {} => polled /\ ~polled']_vars

\* A reset leaves a slot with its writer, and the block gets another slot meanwhile.
NeverTwice == \A s, t \in Slots : s # t /\ Used(slot[s]) => slot[s].key # slot[t].key
=============================================================================
