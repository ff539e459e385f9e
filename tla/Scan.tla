-------------------------------- MODULE Scan ---------------------------------
(***************************************************************************)
(* How far does a prompt's cached prefix reach?  Twice: what the answer    *)
(* IS, and how it is FOUND.                                                *)
(*                                                                         *)
(* A prompt is cut into chunks, 1 to n.  A WORD says of each chunk what a  *)
(* lookup of it answers.  A hit of length e means that computing starts    *)
(* behind chunk e.  A prefix group of layers needs all chunks up to there, *)
(* a window group only the last few.                                       *)
(*                                                                         *)
(* What the answer is, is said without any order of looking: it is the     *)
(* greatest e such that.  How it is found is the loop of the code, written *)
(* as a recursion: each call is one turn of the loop, and its arguments    *)
(* are the loop's variables.  That the two agree, on every word up to a    *)
(* length, is checked in MCScan; which chunks are asked is part of it,     *)
(* because every question costs a tier something.                          *)
(*                                                                         *)
(* An answer is a record: `end', or Again if it must be asked again; and   *)
(* `asked', the chunks that were looked up.                                *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

Results == {"HIT", "HIT_PENDING", "RETRY", "MISS"}
Good == {"HIT", "HIT_PENDING"}      \* it is in the primary, or about to be
Again == -1

Answer(end, asked) == [end |-> end, asked |-> asked]
Greatest(S) == CHOOSE x \in S : \A y \in S : y <= x
Least(S) == CHOOSE x \in S : \A y \in S : x <= y
All(word, chunks, results) == \A c \in chunks : word[c] \in results
Some(word, chunks, result) == \E c \in chunks : word[c] = result

(***************************************************************************)
(* A prefix group alone: up to the first MISS.  Neither RETRY nor          *)
(* HIT_PENDING stops the scan, so that all questions go out at once, but   *)
(* in front of that MISS they defer.                                       *)
(***************************************************************************)
Prefix(word) ==
    LET n     == Len(word)
        reach == Greatest({e \in 0..n : ~Some(word, 1..e, "MISS")})
        asked == 1..(IF reach < n THEN reach + 1 ELSE n)
    IN  Answer(IF All(word, 1..reach, {"HIT"}) THEN reach ELSE Again, asked)

RECURSIVE PrefixLoop(_, _, _)
PrefixLoop(word, chunk, deferred) ==
    IF chunk > Len(word)
    THEN Answer(IF deferred THEN Again ELSE Len(word), 1..Len(word))
    ELSE IF word[chunk] = "MISS"
    THEN Answer(IF deferred THEN Again ELSE chunk - 1, 1..chunk)
    ELSE PrefixLoop(word, chunk + 1, deferred \/ word[chunk] # "HIT")

PrefixFound(word) == PrefixLoop(word, 1, FALSE)

(***************************************************************************)
(* A window group alone: the last run of `size' chunks that are there or   *)
(* about to be.  What is in front of it is not asked.  Without one: the    *)
(* run at the very start, where the window is cut off by the start of the  *)
(* prompt.  A RETRY that was asked defers; a HIT_PENDING only in the run   *)
(* that was chosen.                                                        *)
(***************************************************************************)
Window(word, size) ==
    LET n       == Len(word)
        full    == {s \in 1..(n - size + 1) : All(word, s..(s + size - 1), Good)}
        start   == IF full = {} THEN 1 ELSE Greatest(full)
        leading == Greatest({e \in 0..n : All(word, 1..e, Good)})
        end     == IF full = {} THEN leading ELSE start + size - 1
        again   == Some(word, start..n, "RETRY") \/ Some(word, start..end, "HIT_PENDING")
    IN  Answer(IF again THEN Again ELSE end, start..n)

\* From the end. `run' chunks in a row are good; `pending': one of them is not here yet;
\* `retry': some chunk asked so far is not known.
RECURSIVE WindowLoop(_, _, _, _, _, _)
WindowLoop(word, size, chunk, run, pending, retry) ==
    IF run = size
    THEN Answer(IF pending \/ retry THEN Again ELSE chunk + size, (chunk + 1)..Len(word))
    ELSE IF chunk = 0
    THEN Answer(IF pending \/ retry THEN Again ELSE run, 1..Len(word))
    ELSE LET goOn(r, p, again) == WindowLoop(word, size, chunk - 1, r, p, again)
         IN  CASE word[chunk] = "HIT"         -> goOn(run + 1, pending, retry)
               [] word[chunk] = "HIT_PENDING" -> goOn(run + 1, TRUE, retry)
               [] word[chunk] = "RETRY"       -> goOn(0, FALSE, TRUE)
               [] word[chunk] = "MISS"        -> goOn(0, FALSE, retry)

WindowFound(word, size) == WindowLoop(word, size, Len(word), 0, FALSE, FALSE)

(***************************************************************************)
(* Any mix of groups.  A group is a word and a window; window 0 stands for *)
(* a prefix group.  E* is the greatest length at which no chunk that any   *)
(* group needs is a MISS.  It is the answer if all of these are a HIT.     *)
(***************************************************************************)
Need(group, e) == {c \in 1..e : group.window = 0 \/ c > e - group.window}
Serves(group, e) == ~Some(group.word, Need(group, e), "MISS")
EStar(groups, n) == Greatest({e \in 0..n : \A g \in DOMAIN groups : Serves(groups[g], e)})

Hybrid(groups, n) ==
    LET e == EStar(groups, n)
        all == \A g \in DOMAIN groups : All(groups[g].word, Need(groups[g], e), {"HIT"})
    IN  IF all THEN e ELSE Again

\* Found by lowering e to what one group can live with, group after group, until none lowers it.
Lowered(group, e) == Greatest({d \in 0..e : Serves(group, d)})

RECURSIVE LoweredByEach(_, _)
LoweredByEach(groups, e) ==
    IF groups = <<>> THEN e ELSE LoweredByEach(Tail(groups), Lowered(Head(groups), e))

RECURSIVE EStarFound(_, _)
EStarFound(groups, e) ==
    LET lower == LoweredByEach(groups, e)
    IN  IF lower = e THEN e ELSE EStarFound(groups, lower)
=============================================================================
