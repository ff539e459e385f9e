-------------------------------- MODULE Probe --------------------------------
(***************************************************************************)
(* A probe as a caller may think of it: one key, no requests, no queues,   *)
(* no generations, no time.  Whatever the lookup machine does looks, for   *)
(* every single key, like this (module Refines says how, and TLC checks    *)
(* it), so whoever writes a tier or calls a manager can rely on this page  *)
(* and forget the rest:                                                    *)
(*                                                                         *)
(*   idle      nothing is known and nothing asked                          *)
(*   asked     somebody wants to know; not sent                            *)
(*   called    the question is out                                         *)
(*   answered  a verdict is held                                           *)
(*                                                                         *)
(* and `out', how many questions of this key are with the back end or on   *)
(* their way from there: never more than one.                              *)
(***************************************************************************)
EXTENDS Naturals

VARIABLES state, out, closed

vars == <<state, out, closed>>

Init == state = "idle" /\ out = 0 /\ closed = FALSE

\* A first question. There is none while an older one is out.
Ask == state = "idle" /\ out = 0 /\ ~closed /\ state' = "asked" /\ out' = 0

\* All who wanted to know are gone before it was sent: the back end never hears of it.
TakeBack == state = "asked" /\ state' = "idle" /\ out' = 0

Call == state = "asked" /\ ~closed /\ state' = "called" /\ out = 0 /\ out' = 1

\* The answer is read: it is held, or nobody is there who wants it.
Answer == state = "called" /\ out = 1 /\ out' = 0 /\ state' \in {"answered", "idle"}

\* A verdict that stands for a failed question, or is too old, is asked again. The failure can be
\* read and asked again in one call, so a caller may see "called", and then "asked".
AskAgain ==
    /\ ~closed /\ state' = "asked" /\ out' = 0
    /\ \/ state = "answered" /\ out = 0
       \/ state = "called" /\ out = 1

\* The last holder is gone, or nobody took the answer until the next flush.
Forget == state = "answered" /\ state' = "idle" /\ out' = out

\* Shutdown returns. What has no answer is forgotten, though its question may still be out; of
\* that nobody hears any more. An answer that is there is read first.
Close ==
    /\ ~closed
    /\ \/ state \in {"asked", "idle"} /\ state' = "idle" /\ out' = out
       \/ state = "called" /\ state' = "idle" /\ out' \in {0, 1}
       \/ state = "called" /\ state' = "answered" /\ out' = 0
       \/ state = "answered" /\ state' \in {"answered", "idle"} /\ out' = out

Next ==
    \/ (Ask \/ TakeBack \/ Call \/ Answer \/ AskAgain \/ Forget) /\ UNCHANGED closed
    \/ Close /\ closed' = TRUE

Spec == Init /\ [][Next]_vars

\* What follows from this page alone.
OneOutInv == out \in {0, 1} /\ (state \in {"asked", "answered"} => out = 0)
ClosedInv == closed => state \in {"idle", "answered"}
QuietProp == [][closed => out' = out]_vars
=============================================================================
