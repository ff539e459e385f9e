-------------------------------- MODULE MCCount ------------------------------
(***************************************************************************)
(* The machine as the code has it: generations are counted and no number   *)
(* comes twice.  Everywhere else the least number that is not in use does; *)
(* this shows that nothing hides behind that.  It also remembers every     *)
(* question that the back end was ever called with.                        *)
(***************************************************************************)
EXTENDS MC

VARIABLES last, called      \* the last number given away; the questions called so far

countVars == <<entry, held, batch, due, queue, worker, results, shut, last, called>>

Counted(e, rs) == last + 1

CountInit == Init /\ last = 0 /\ called = {}

CountNext ==
    /\ Next
    /\ last' = Max({last} \cup {entry'[k].gen : k \in K})
    /\ called' = called \cup (IF worker'[1] = "call" THEN worker'[2] ELSE {})

CountSpec == CountInit /\ [][CountNext]_countVars

\* Cap: three generations are an old one that is still out, the present one, and the next. A
\* fourth differs from the third in nothing but its number, and numbers are only compared.
Cap == last <= 3

\* What is about to be called never was.
CallOnceEverInv == worker[1] = "read" => worker[2] \cap called = {}

\* A new generation is one that never was.
GenerationsGrowProp ==
    [][\A k \in K : entry'[k].gen \in {0, entry[k].gen} \/ entry'[k].gen = last + 1]_countVars
=============================================================================
