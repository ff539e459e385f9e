------------------------------- MODULE MCTold --------------------------------
(* Told at a size that can be searched to the end: sizes in the .cfg files. *)
EXTENDS Told, MC
=============================================================================
