------------------------------- MODULE ToldLive ------------------------------
(***************************************************************************)
(* A holder that polls is told a bool in the end.  This needs the diary of *)
(* Told, and more fairness than the rest: the request must poll.  Where a  *)
(* deadline is set it must also pass; then it holds even if the back end   *)
(* hangs, because the deadline speaks for it.  It is for verdicts without  *)
(* a lifetime: with one, a request can chase expiring verdicts for ever.   *)
(***************************************************************************)
EXTENDS Told, Live

Polls(r, k) == k \in held[r] /\ \E reply \in Anything : ToldLookup(r, k, reply)

ToldLiveSpec ==
    /\ ToldSpec /\ Fairness
    /\ \A r \in R, k \in K : WF_toldVars(Polls(r, k))
    /\ \A k \in K : WF_vars(DeadlinePasses(k))

\* Once it was told a bool in this hold, "none" is not among what it may be told.
ToldLive == \A r \in R, k \in K : k \in held[r] ~> k \notin held[r] \/ "none" \notin may[r][k]
=============================================================================
