--------------------------- MODULE MCTieringLookup ---------------------------
(***************************************************************************)
(* The other way to ask: lookup, which promotes each block as soon as it   *)
(* is found, and not when it is known how far the hit reaches.  (This is   *)
(* how vLLM asks.)  For it, PassAsks is replaced by PassPromotesAtOnce.    *)
(* Every property holds for it too; it moves blocks that turn out not to   *)
(* be needed.                                                              *)
(***************************************************************************)
EXTENDS MCTiering

\* One key: every way that lookup can go, from one way that the keys before it went.
Steps1(way, r, k) ==
    LET at     == Locate(way.slot, way.me, r, k)
        stops  == {[way EXCEPT !.slot = at.slot, !.me = at.me, !.missed = TRUE]}
        goesOn == {[way EXCEPT !.slot = at.slot, !.me = at.me, !.whole = @ /\ at.result = "HIT",
                               !.end = @ + 1]}
        begun  == {[way EXCEPT !.slot = Waits(sl, r, k), !.me = WaitedFor(at.me, sl, k),
                               !.claims = @ \cup {ClaimOn(sl, k)}, !.whole = FALSE, !.end = @ + 1] :
                     sl \in Taken(at.slot, k, NextWrite(k))}
    IN  CASE way.missed -> {way}
          [] at.result = "MISS" -> stops
          [] at.result = "RETRY" /\ k \in at.me.notes -> IF Room(at.slot) = 0 THEN stops ELSE begun
          [] OTHER -> goesOn

RECURSIVE Looked(_, _, _)
Looked(ways, r, keys) ==
    IF keys = <<>> THEN ways
    ELSE Looked(UNION {Steps1(way, r, Head(keys)) : way \in ways}, r, Tail(keys))

PassPromotesAtOnce(r) ==
    LET me0   == [req[r] EXCEPT !.passed = TRUE]
        begin == IF me0.late THEN StopsWaiting(slot, r) ELSE [slot |-> slot, queue |-> queue]
        now   == [slot |-> begin.slot, me |-> me0, claims |-> {}, end |-> 0, whole |-> TRUE,
                  missed |-> FALSE]
    IN  /\ ~Busy(req[r])
        /\ polled' = TRUE
        /\ \E way \in Looked({now}, r, Prompt[r]) :
              /\ slot' = way.slot
              /\ req' = [req EXCEPT ![r] = IF way.whole
                                            THEN [way.me EXCEPT !.phase = "found", !.end = way.end]
                                            ELSE way.me]
              /\ queue' = begin.queue \cup way.claims
=============================================================================
