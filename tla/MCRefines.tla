------------------------------ MODULE MCRefines ------------------------------
(* Refines at a size that can be searched to the end: sizes in the .cfg files. *)
EXTENDS Refines, MC
=============================================================================
