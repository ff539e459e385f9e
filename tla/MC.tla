---------------------------------- MODULE MC ---------------------------------
(***************************************************************************)
(* The lookup machine at a size that can be searched to the end.  The size *)
(* and what can happen are in the .cfg files; here is what they all need.  *)
(* Mutants is here for the files in mutants/, which put its operators in   *)
(* the place of others; nothing else refers to it.                         *)
(***************************************************************************)
EXTENDS AsyncLookupProps, Mutants, TLC

\* Instead of a number above all in use: the least that is not in use. Cap: there are at most as
\* many numbers in use as entries and questions out, so this is finite, and it loses nothing,
\* since generations are compared and nothing else.
LeastUnused(e, rs) ==
    LET used == GensInUse(e, rs)
    IN  CHOOSE g \in 1..(Cardinality(used) + 1) : g \notin used /\ \A h \in 1..(g - 1) : h \in used

\* Keys may be renamed among themselves, and requests too. (Never with liveness, and both sets
\* must have two elements or more.)
Symmetry == Permutations(K) \cup Permutations(R)
=============================================================================
