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

Goes(to, questions) == state' = to /\ out' = questions

\* A first question. There is none while an older one is out.
Ask == state = "idle" /\ out = 0 /\ ~closed /\ Goes("asked", 0) /\ UNCHANGED closed

\* All who wanted to know are gone before it was sent: the back end never hears of it.
TakeBack == state = "asked" /\ Goes("idle", 0) /\ UNCHANGED closed

Call == state = "asked" /\ out = 0 /\ ~closed /\ Goes("called", 1) /\ UNCHANGED closed

\* The answer is read: it is held, or nobody is there who wants it.
Answer ==
    /\ state = "called" /\ out = 1
    /\ Goes("answered", 0) \/ Goes("idle", 0)
    /\ UNCHANGED closed

\* A verdict that stands for a failed question, or is too old, is asked again. The failure can be
\* read and asked again in one call, so a caller may see "called", and then "asked".
AskAgain ==
    /\ ~closed
    /\ (state = "answered" /\ out = 0) \/ (state = "called" /\ out = 1)
    /\ Goes("asked", 0)
    /\ UNCHANGED closed

\* The last holder is gone, or nobody took the answer until the next flush.
Forget == state = "answered" /\ Goes("idle", out) /\ UNCHANGED closed

\* Shutdown returns. What has no answer is forgotten, though its question may still be out; of
\* that nobody hears any more. An answer that is there is read first.
Close ==
    /\ ~closed /\ closed' = TRUE
    /\ CASE state = "called"   -> Goes("answered", 0) \/ Goes("idle", 0) \/ Goes("idle", 1)
         [] state = "answered" -> Goes("answered", 0) \/ Goes("idle", 0)
         [] OTHER              -> Goes("idle", out)

Next == Ask \/ TakeBack \/ Call \/ Answer \/ AskAgain \/ Forget \/ Close

Spec == Init /\ [][Next]_vars

\* What follows from this page alone.
OneOutInv == out \in {0, 1} /\ (state \in {"asked", "answered"} => out = 0)
ClosedInv == closed => state \in {"idle", "answered"}
QuietProp == [][closed => out' = out]_vars
=============================================================================
