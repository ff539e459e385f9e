------------------------------- MODULE Refines -------------------------------
(***************************************************************************)
(* The lookup machine does, for every key, only what Probe does.           *)
(*                                                                         *)
(* INSTANCE ... WITH is a translation: it says what each variable of Probe *)
(* is in terms of this machine.  ProbeSpec then says: translated, every    *)
(* behaviour is one of Probe for each key.  It is ProbeOf(k)!Spec for all  *)
(* k, written out so that TLC can read it: each begins like a probe, and   *)
(* in every step each makes a step of a probe, or none.                    *)
(***************************************************************************)
EXTENDS AsyncLookup

Seen(k) ==
    CASE entry[k].phase = "ABSENT"    -> "idle"
      [] entry[k].phase = "PENDING"   -> "asked"
      [] entry[k].phase = "IN_FLIGHT" -> "called"
      [] entry[k].phase = "RESOLVED"  -> "answered"

ProbeOf(k) == INSTANCE Probe WITH state <- Seen(k), out <- OutOf(k), closed <- shut = "closed"

ProbeSpec ==
    /\ \A k \in K : ProbeOf(k)!Init
    /\ [][\A k \in K : ProbeOf(k)!Next \/ UNCHANGED <<Seen(k), OutOf(k), shut = "closed">>]_vars
=============================================================================
