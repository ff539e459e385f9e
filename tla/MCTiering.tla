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

\* Prompts: the same; the second turned round, so that each needs first what the other needs last;
\* the second shorter.
Same2 == [r \in R |-> <<"k1", "k2">>]
Turned2 == [r \in R |-> IF r = "r1" THEN <<"k1", "k2">> ELSE <<"k2", "k1">>]
Short2 == [r \in R |-> IF r = "r1" THEN <<"k1", "k2">> ELSE <<"k2">>]
Turned3 == [r \in R |-> IF r = "r1" THEN <<"k1", "k2", "k3">> ELSE <<"k3", "k1", "k2">>]
=============================================================================
