------------------------------- MODULE MCScan --------------------------------
(***************************************************************************)
(* The scans on every word up to a length.  There is no machine here: each *)
(* initial state is one case, and nothing happens; an invariant is a claim *)
(* about all cases, and the counterexample is the case.                    *)
(***************************************************************************)
EXTENDS Scan

CONSTANTS
    Longest,    \* so many chunks at most
    Letters     \* the results that occur
ASSUME Letters \subseteq Results

VARIABLE case       \* the groups: a sequence of words with their windows

Words(n) == [1..n -> Letters]
\* A window larger than the prompt is one that the start of the prompt cuts off.
Groups(n) == [word : Words(n), window : 0..(n + 1)]

OneGroup == \E n \in 0..Longest : case \in [1..1 -> Groups(n)]
TwoGroups == \E n \in 0..Longest : case \in [1..2 -> Groups(n)]
Stays == UNCHANGED case

Length == Len(case[1].word)
Lone == case[1]

PrefixInv == Len(case) = 1 /\ Lone.window = 0 => PrefixFound(Lone.word) = Prefix(Lone.word)
WindowInv ==
    Len(case) = 1 /\ Lone.window > 0 =>
        WindowFound(Lone.word, Lone.window) = Window(Lone.word, Lone.window)
HybridInv == EStarFound(case, Length) = EStar(case, Length)

\* The two scans are E* for one group, but for one thing: a RETRY that an answer further on has
\* ruled out defers the window scan, and does not defer E*.
LoneInv ==
    Len(case) = 1 =>
        IF Lone.window = 0
        THEN Prefix(Lone.word).end = Hybrid(case, Length)
        ELSE LET scan == Window(Lone.word, Lone.window)
             IN  \/ scan.end = Hybrid(case, Length)
                 \/ scan.end = Again /\ Some(Lone.word, scan.asked, "RETRY")

\* A hit is loaded from what was asked.
AskedInv ==
    Len(case) = 1 =>
        LET scan == IF Lone.window = 0 THEN Prefix(Lone.word) ELSE Window(Lone.word, Lone.window)
        IN  scan.end # Again => Need(Lone, scan.end) \subseteq scan.asked

\* A mutant, for EStarFound: the least of the lengths that the groups answer separately.
LeastOfAnswers(groups, n) == Least({Lowered(groups[g], n) : g \in DOMAIN groups})

\* Why not: a prefix group that reads HHHM, a window of one chunk that reads HHMH.
ASSUME LET groups == <<[window |-> 0, word |-> <<"HIT", "HIT", "HIT", "MISS">>],
                       [window |-> 1, word |-> <<"HIT", "HIT", "MISS", "HIT">>]>>
       IN  LeastOfAnswers(groups, 4) = 3 /\ EStar(groups, 4) = 2
=============================================================================
