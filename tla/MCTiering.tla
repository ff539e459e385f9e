------------------------------ MODULE MCTiering ------------------------------
(***************************************************************************)
(* Tiering at sizes that can be searched to the end.  The size and what    *)
(* can happen are in the .cfg files; here is what they all need.           *)
(***************************************************************************)
EXTENDS TieringLive, TLC

\* Write numbers: the least that nothing refers to. So they are finitely many, and it loses
\* nothing, since they are compared and nothing else.
LeastWrite(k) == CHOOSE w \in 1..(Cardinality(WritesInUse(k)) + 1) :
    w \notin WritesInUse(k) /\ \A v \in 1..(w - 1) : v \in WritesInUse(k)

Same2 == [r \in R |-> <<"k1", "k2">>]
Other2 == [r \in R |-> IF r = "r1" THEN <<"k1", "k2">> ELSE <<"k2", "k1">>]
Fork2 == [r \in R |-> IF r = "r1" THEN <<"k1", "k2">> ELSE <<"k1", "k3">>]

Same3 == [r \in R |-> <<"k1", "k2", "k3">>]
Other3 == [r \in R |-> IF r = "r1" THEN <<"k1", "k2", "k3">> ELSE <<"k3", "k1", "k2">>]

\* Slots are alike but for their number.
Bare(claims) == {<<c[2], c[3]>> : c \in claims}
SlotsAlike ==
    <<{slot[s] : s \in {t \in Slots : Used(slot[t])}},
      [r \in R |-> [req[r] EXCEPT !.reading = Bare(@), !.filling = Bare(@)]],
      Bare(queue),
      {[j EXCEPT !.claims = Bare(@)] : j \in jobs},
      has, heard, polled>>
=============================================================================
