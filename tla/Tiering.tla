------------------------------- MODULE Tiering -------------------------------
(***************************************************************************)
(* Tiers: requests look for blocks, and the blocks move up to where they   *)
(* can be read.                                                            *)
(*                                                                         *)
(* The primary has Cap slots, and only what is in a slot can be read.  A   *)
(* secondary tier has many more blocks; to read one of them it is          *)
(* promoted: a slot is reserved, a load job fills it, and the request      *)
(* waits for that write.  What a request has computed it stores into slots *)
(* of its own, from where it is cascaded into the secondary.  Slots are    *)
(* few, requests compete for them, and nobody may ever wait for a slot.    *)
(*                                                                         *)
(* A request's way: it waits, and in each step it makes one PASS: it asks  *)
(* for its keys one after the other up to the first miss, and then it      *)
(* either knows how far its hit reaches ("found") or is deferred.  A       *)
(* deferred one tries again in the next step.  Admitted, it reads (loads)  *)
(* its hit out of the slots, stores the rest, and finishes.  It may finish *)
(* at any other moment too: somebody hung up.                              *)
(*                                                                         *)
(* How to read this if you know Python and not TLA+: see the head of       *)
(* AsyncLookup.  Here most operators take a value of the slots (`sl', a    *)
(* function slot -> what is in it) or of one request (`me') and return a   *)
(* new one.  Where the machine is free to choose (which block goes?) they  *)
(* return the set of all new values, and the action says: one of these.    *)
(*                                                                         *)
(* What is checked: here what holds of every state, in TieringProps what   *)
(* holds of every step, in TieringLive that every deferred request ends.   *)
(* Passes and admissions come in every order, and the calls of different   *)
(* requests between them.                                                  *)
(*                                                                         *)
(* Left out.  Several secondaries: here is one, which answers at once or   *)
(* one step later.  Groups of layers: every request has one prefix group;  *)
(* how far a hit reaches for other groups is in Scan, and whoever needs    *)
(* other keys does not wait otherwise.  Which evictable block goes: any.   *)
(* A tier's report that is on its way: it is there when it is taken in.    *)
(* Counts.                                                                 *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    R,          \* the requests
    Prompt,     \* request -> the keys of its blocks, in the order of the prompt
    Cap,        \* so many slots has the primary
    Headroom,   \* so many of them are never taken up by promotions that somebody waits for
    Has,        \* the keys that the secondary has from the start
    Slow,       \* the keys that it answers for one step after the question
    Features    \* which of the things below can happen at all

AllFeatures ==
    {"fail",    \* a load or a store can fail, and of a load any part of it
     "refuse",  \* a tier can refuse a job by raising
     "finish",  \* a request can finish at any moment, not only when it is done
     "store",   \* a request stores what it has computed
     "again",   \* a request that is gone can come again
     "preempt", \* a request can be sent back to waiting
     "reset",   \* the primary can be told to forget everything
     "bound"}   \* a request can be deferred too often, a write can take too long
ASSUME
    /\ Headroom \in Nat /\ Cap \in Nat /\ Headroom < Cap
    /\ Features \subseteq AllFeatures
    /\ \A r \in R : \A i, j \in DOMAIN Prompt[r] : i # j => Prompt[r][i] # Prompt[r][j]

Can(feature) == feature \in Features
K == UNION {{Prompt[r][i] : i \in DOMAIN Prompt[r]} : r \in R}
Slots == 1..Cap
Budget == Cap - Headroom

VARIABLES
    slot,       \* slot -> what is in it (or Free)
    req,        \* request -> what is known of it
    queue,      \* promotions that have their slot and were not handed to the tier yet
    jobs,       \* jobs that the tier was given and has not reported
    has,        \* the keys that the tier has
    heard,      \* the requests of which the tier has heard that they finished
    polled      \* in this step the tier's reports were taken in

vars == <<slot, req, queue, jobs, has, heard, polled>>

(***************************************************************************)
(* A slot.  `write' numbers the fillings of slots, so that a late          *)
(* completion is not taken for one of what the slot holds now.  `waiters'  *)
(* are the requests that wait for the write, who waits longest in front;   *)
(* they keep the block also when it is ready.  `refs': so many reads.      *)
(* `pinned': some pass of this step has called it a hit.  `dropped': a     *)
(* reset took its key away while it was written or read.  `old': the write *)
(* takes too long to begin waiting for it.                                 *)
(*                                                                         *)
(* `bytes' is what really is in the slot.  Nobody looks at it: the code    *)
(* could not, and it is here for ReadyInv only.                            *)
(*                                                                         *)
(* A CLAIM <<slot, key, write>> is what a reader or writer has in hand.    *)
(***************************************************************************)
Free == [key |-> "none", write |-> 0, ready |-> FALSE, bytes |-> "junk", refs |-> 0,
         pinned |-> FALSE, waiters |-> <<>>, dropped |-> FALSE, old |-> FALSE]
Begun(k, w) == [Free EXCEPT !.key = k, !.write = w]

Used(b) == b.key # "none"
Writing(b) == Used(b) /\ ~b.ready

HolderOf(sl, k) == {s \in Slots : sl[s].key = k /\ ~sl[s].dropped}     \* one slot, or none
Here(sl, k) == HolderOf(sl, k) # {}
SlotOf(sl, k) == CHOOSE s \in HolderOf(sl, k) : TRUE
WriteOf(sl, k) == IF Here(sl, k) THEN sl[SlotOf(sl, k)].write ELSE 0
ClaimOn(sl, k) == <<SlotOf(sl, k), k, WriteOf(sl, k)>>
Names(sl, c) == sl[c[1]].key = c[2] /\ sl[c[1]].write = c[3]      \* the claim is good

\* A block that was dropped leaves its slot when nobody writes or reads it.
Kept(b) == IF b.dropped /\ b.ready /\ b.refs = 0 THEN Free ELSE b

(***************************************************************************)
(* Room.  Only a slot that is ready and that nobody holds is taken from    *)
(* its block, for a store and for a promotion alike.  A promotion must     *)
(* leave some slots to those who do not wait.                              *)
(***************************************************************************)
Evictable(b) == b.ready /\ b.refs = 0 /\ ~b.pinned /\ b.waiters = <<>>
FreeSlots(sl) == {s \in Slots : ~Used(sl[s])}
EvictableSlots(sl) == {s \in Slots : Used(sl[s]) /\ Evictable(sl[s])}
Available(sl) == Cardinality(FreeSlots(sl)) + Cardinality(EvictableSlots(sl))
Awaited(sl) == Cardinality({s \in Slots : sl[s].waiters # <<>>})

Min(a, b) == IF a < b THEN a ELSE b
Room(sl) == IF Awaited(sl) >= Budget THEN 0 ELSE Min(Budget - Awaited(sl), Available(sl))

\* The slots after one was taken for a write of k: a free one if there is one (all free slots
\* are alike: the first), else any evictable one. No room: the empty set.
Taken(sl, k, w) ==
    IF FreeSlots(sl) # {}
    THEN {[sl EXCEPT ![CHOOSE s \in FreeSlots(sl) : \A t \in FreeSlots(sl) : s <= t] = Begun(k, w)]}
    ELSE {[sl EXCEPT ![s] = Begun(k, w)] : s \in EvictableSlots(sl)}

(***************************************************************************)
(* A request.  Its phase: "new", "waiting", "found" (a pass of this step   *)
(* has found that its hit reaches to `end'), "running", "storing",         *)
(* "leaving" (it finished, and the engine still reads or fills slots for   *)
(* it), "gone".                                                            *)
(*                                                                         *)
(* Of single keys it knows: `asked': the tier was asked and has not        *)
(* answered; `answered': it has; `notes': the tier has it; `waits': the    *)
(* writes that it waited for, <<key, write>>; `settled': it is a miss for  *)
(* the rest of this life, unless it turns up in the primary.  `passed': it *)
(* made its pass in this step.  `late': it was deferred too often.         *)
(* `reading', `filling': claims that the engine has for it.                *)
(***************************************************************************)
Blank == [phase |-> "new", passed |-> FALSE, end |-> 0,
          asked |-> {}, answered |-> {}, notes |-> {}, waits |-> {}, settled |-> {},
          reading |-> {}, filling |-> {}, late |-> FALSE, preempted |-> FALSE]

\* What it knows of single keys is forgotten where it is of no use any more.
Forgets(me) == [me EXCEPT !.asked = {}, !.answered = {}, !.notes = {}, !.waits = {}, !.settled = {}]

Busy(me) == me.reading # {} \/ me.filling # {}

(***************************************************************************)
(* Write numbers.  As with generations: numbers of writes of one key are   *)
(* compared and nothing else, so any number will do that nothing refers    *)
(* to.  MC modules take the least.                                         *)
(***************************************************************************)
Loads == {j \in jobs : j.kind = "load"}
Stores == {j \in jobs : j.kind = "store"}
ClaimsOf(js) == UNION {j.claims : j \in js}
AllClaims == queue \cup ClaimsOf(jobs) \cup UNION {req[r].reading \cup req[r].filling : r \in R}
WritesInUse(k) ==
    {slot[s].write : s \in {t \in Slots : slot[t].key = k}}
      \cup {c[3] : c \in {d \in AllClaims : d[2] = k}}
      \cup {w[2] : w \in {v \in UNION {req[r].waits : r \in R} : v[1] = k}}
Max(S) == CHOOSE x \in S : \A y \in S : y <= x
NextWrite(k) == 1 + Max({0} \cup WritesInUse(k))

(***************************************************************************)
(* locate: where is the block for this request?  The first case that fits. *)
(* It starts nothing.  "HIT" keeps the block to the end of the step; a     *)
(* block that is being written is waited for; what the tier has is noted.  *)
(*                                                                         *)
(* The rule that ends every deferral: a request waits for one write of a   *)
(* key in its life.  When that write is over, the block is there, or it is *)
(* a miss for this request (Spent), though another write of it may be      *)
(* under way or the tier may have it.                                      *)
(***************************************************************************)
Spent(me, k, w) == \E v \in me.waits : v[1] = k /\ v[2] # w
Pins == TRUE
JoinsLine(line, r) == IF \E i \in DOMAIN line : line[i] = r THEN line ELSE Append(line, r)
Waits(sl, r, k) == [sl EXCEPT ![SlotOf(sl, k)].waiters = JoinsLine(@, r)]
WaitedFor(me, sl, k) == [me EXCEPT !.waits = @ \cup {<<k, WriteOf(sl, k)>>}]
Says(result, sl, me) == [result |-> result, slot |-> sl, me |-> me]

Locate(sl, me, r, k) ==
    LET b == sl[SlotOf(sl, k)]
    IN  CASE Here(sl, k) /\ b.ready ->
                Says("HIT", [sl EXCEPT ![SlotOf(sl, k)].pinned = Pins], me)
          [] me.late \/ k \in me.settled ->
                Says("MISS", sl, me)
          [] Spent(me, k, WriteOf(sl, k)) ->
                Says("MISS", sl, [me EXCEPT !.settled = @ \cup {k}])
          [] Here(sl, k) /\ b.old /\ <<k, b.write>> \notin me.waits ->
                Says("MISS", sl, me)
          [] Here(sl, k) ->
                Says("HIT_PENDING", Waits(sl, r, k), WaitedFor(me, sl, k))
          [] k \in me.notes ->
                Says("RETRY", sl, me)
          [] k \in Slow \ me.answered ->
                Says("RETRY", sl, [me EXCEPT !.asked = @ \cup {k}])
          [] k \in has ->
                Says("RETRY", sl, [me EXCEPT !.notes = @ \cup {k}])
          [] OTHER ->
                Says("MISS", sl, [me EXCEPT !.settled = @ \cup {k}])

\* The keys from the i-th on, up to the first miss. `seen' are the results, one for each key.
RECURSIVE Scan(_, _, _, _, _)
Scan(sl, me, r, i, seen) ==
    IF i > Len(Prompt[r]) THEN [slot |-> sl, me |-> me, seen |-> seen]
    ELSE LET at == Locate(sl, me, r, Prompt[r][i])
         IN  IF at.result = "MISS"
             THEN [slot |-> at.slot, me |-> at.me, seen |-> seen]
             ELSE Scan(at.slot, at.me, r, i + 1, Append(seen, at.result))

(***************************************************************************)
(* The end of a pass.  The hit could reach to Len(seen).  If the tier has  *)
(* not answered for something of it, nothing is reserved: ask again.  Else *)
(* it reaches as far as there is room for what has to be promoted; what    *)
(* there is no room for is a miss in this pass, and nobody waits for room. *)
(***************************************************************************)
Unknown(found, r) == {i \in DOMAIN found.seen : Prompt[r][i] \in found.me.asked}
\* What must be promoted for a hit of length e: it is in no slot, not being written either.
Elsewhere(found, r, e) == SelectSeq(SubSeq(Prompt[r], 1, e), LAMBDA k : ~Here(found.slot, k))
Reach(found, r, room) ==
    Max({e \in 0..Len(found.seen) : Len(Elsewhere(found, r, e)) <= room})
Answers(found, e) == \A i \in 1..e : found.seen[i] = "HIT"

\* Every way to give slots to these keys, in this order, so that r waits for them.
RECURSIVE Reserved(_, _, _)
Reserved(ways, r, keys) ==
    IF keys = <<>> THEN ways
    ELSE LET k == Head(keys)
             after(way) ==
                 {[slot   |-> Waits(sl, r, k),
                   me     |-> WaitedFor(way.me, sl, k),
                   claims |-> way.claims \cup {ClaimOn(sl, k)}] :
                     sl \in Taken(way.slot, k, NextWrite(k))}
         IN  Reserved(UNION {after(way) : way \in ways}, r, Tail(keys))

(***************************************************************************)
(* r stops waiting.  A promotion of the queue is handed over to who waits  *)
(* next, or dropped and its slot freed, if nobody does.  A load that the   *)
(* tier already has runs on, and keeps its slot.                           *)
(***************************************************************************)
IsNot(r, line) == SelectSeq(line, LAMBDA other : other # r)
Left(sl, r) == [s \in Slots |-> [sl[s] EXCEPT !.waiters = IsNot(r, @)]]
Unwanted(sl) == {c \in queue : sl[c[1]].waiters = <<>>}
Vacated(sl) == {c[1] : c \in Unwanted(sl)}
StopsWaiting(sl, r) ==
    LET left == Left(sl, r)
    IN  [slot  |-> [s \in Slots |-> IF s \in Vacated(left) THEN Free ELSE left[s]],
         queue |-> queue \ Unwanted(left)]

(***************************************************************************)
(* The actions of a request.                                               *)
(***************************************************************************)
Arrive(r) ==
    /\ req[r].phase = "new"
    /\ req' = [req EXCEPT ![r].phase = "waiting"]
    /\ heard' = heard \ {r}
    /\ UNCHANGED <<slot, queue, jobs, has, polled>>

\* After a reset promotions are on hold until the slots are back, or for so long at most.
OnHold == IF \E s \in Slots : slot[s].dropped THEN {TRUE, FALSE} ELSE {FALSE}

\* Its own transfers are under way: it asks for nothing, or it would wait for itself.
PassIdle(r) ==
    /\ Busy(req[r])
    /\ req' = [req EXCEPT ![r].passed = TRUE]
    /\ UNCHANGED <<slot, queue, polled>>

PassAsks(r) ==
    LET me0   == [req[r] EXCEPT !.passed = TRUE]
        begin == IF me0.late THEN StopsWaiting(slot, r) ELSE [slot |-> slot, queue |-> queue]
        found == Scan(begin.slot, me0, r, 1, <<>>)
    IN  /\ ~Busy(req[r])
        /\ polled' = TRUE
        /\ IF Unknown(found, r) # {}
           THEN /\ slot' = found.slot
                /\ req' = [req EXCEPT ![r] = found.me]
                /\ queue' = begin.queue
           ELSE \E held \in OnHold :
                LET e   == Reach(found, r, IF held THEN 0 ELSE Room(found.slot))
                    now == [slot |-> found.slot, me |-> found.me, claims |-> {}]
                IN  \E way \in Reserved({now}, r, Elsewhere(found, r, e)) :
                      /\ slot' = way.slot
                      /\ req' = [req EXCEPT ![r] =
                                    IF Answers(found, e)
                                    THEN [way.me EXCEPT !.phase = "found", !.end = e]
                                    ELSE way.me]
                      /\ queue' = begin.queue \cup way.claims

Pass(r) ==
    /\ req[r].phase = "waiting" /\ ~req[r].passed
    /\ PassIdle(r) \/ PassAsks(r)
    /\ UNCHANGED <<jobs, has, heard>>

\* prepare_load, also with no keys: it reads its hit, and waits for nothing any more. What it
\* knows of single keys is of no use from here on.
Needed(r) == {Prompt[r][i] : i \in 1..req[r].end}
Admit(r) ==
    LET waitless == StopsWaiting(slot, r)
        claims   == {ClaimOn(slot, k) : k \in Needed(r)}
    IN  /\ req[r].phase = "found"
        /\ slot' = [s \in Slots |-> IF \E c \in claims : c[1] = s
                                    THEN [waitless.slot[s] EXCEPT !.refs = @ + 1]
                                    ELSE waitless.slot[s]]
        /\ queue' = waitless.queue
        /\ req' = [req EXCEPT ![r] = [Forgets(@) EXCEPT !.phase = "running", !.reading = claims,
                                                        !.passed = FALSE]]
        /\ UNCHANGED <<jobs, has, heard, polled>>

\* A request that left is gone with its last transfer; the tier has heard by then.
Rest(me) == IF me.phase = "leaving" /\ ~Busy(me) THEN [Blank EXCEPT !.phase = "gone"] ELSE me
Gone(me) == IF Can("again") /\ Rest(me).phase = "gone" THEN Blank ELSE Rest(me)
\* The tier hears that a request finished when nothing of it can be submitted any more.
Hears(me) == me.phase \in {"leaving", "gone"} /\ me.filling = {}

Unread(sl, claims) ==
    [s \in Slots |-> IF \E c \in claims : c[1] = s /\ Names(sl, c)
                     THEN Kept([sl[s] EXCEPT !.refs = @ - 1]) ELSE sl[s]]

CompleteLoad(r) ==
    /\ req[r].reading # {}
    /\ slot' = Unread(slot, req[r].reading)
    /\ req' = [req EXCEPT ![r] = Gone([@ EXCEPT !.reading = {}])]
    /\ UNCHANGED <<queue, jobs, has, heard, polled>>

\* Slots for what was computed, from the front as far as they fit. What is here is skipped, and
\* stays for the rest of the call: it comes before what follows it. (Meanwhile it is pinned.)
RECURSIVE Filled(_, _)
Filled(ways, keys) ==
    IF keys = <<>> THEN ways
    ELSE LET k == Head(keys)
             after(way) ==
                 CASE Here(way.slot, k) ->
                        {[way EXCEPT !.slot[SlotOf(way.slot, k)].pinned = TRUE]}
                   [] ~Here(way.slot, k) /\ Available(way.slot) = 0 ->
                        {way}
                   [] OTHER ->
                        {[slot |-> sl, claims |-> way.claims \cup {ClaimOn(sl, k)}] :
                            sl \in Taken(way.slot, k, NextWrite(k))}
         IN  Filled(UNION {after(way) : way \in ways}, Tail(keys))

SameWrite(b, c) == b.key = c.key /\ b.write = c.write

PrepareStore(r) ==
    /\ Can("store")
    /\ req[r].phase = "running" /\ req[r].reading = {}
    /\ \E way \in Filled({[slot |-> slot, claims |-> {}]},
                         SubSeq(Prompt[r], req[r].end + 1, Len(Prompt[r]))) :
          /\ slot' = [s \in Slots |->
                        IF SameWrite(way.slot[s], slot[s]) THEN slot[s] ELSE way.slot[s]]
          /\ req' = [req EXCEPT ![r].phase = "storing", ![r].end = 0, ![r].filling = way.claims]
    /\ polled' = TRUE
    /\ UNCHANGED <<queue, jobs, has, heard>>

(***************************************************************************)
(* The end of a write.  The writer has put its bytes into the slot that it *)
(* was given, whatever is in there by now.  The manager believes it of     *)
(* the write that it was given the slot for, and of no other.              *)
(***************************************************************************)
After(b, k, ok) == IF ok THEN Kept([b EXCEPT !.ready = TRUE, !.old = FALSE]) ELSE Free
Written(sl, claims, good) ==
    [s \in Slots |->
        LET mine == {c \in claims : c[1] = s}
        IN  IF mine = {} THEN sl[s]
            ELSE LET c  == CHOOSE d \in mine : TRUE
                     ok == c[2] \in good
                     b  == IF Used(sl[s])
                           THEN [sl[s] EXCEPT !.bytes = IF ok THEN c[2] ELSE "junk"] ELSE sl[s]
                 IN  IF Names(sl, c) /\ Writing(sl[s]) THEN After(b, c[2], ok) ELSE b]

Job(kind, r, claims) == [kind |-> kind, req |-> r, claims |-> claims, late |-> r \in heard]

\* The engine has filled its slots, or failed to. What is readable is cascaded into the tier,
\* before that hears of the finish.
Cascades(r, claims) ==
    IF claims = {} THEN {{}}
    ELSE {{Job("store", r, claims)}} \cup (IF Can("refuse") THEN {{}} ELSE {})

CompleteStore(r, ok) ==
    LET me     == [req[r] EXCEPT !.filling = {}]
        claims == req[r].filling
        sl     == Written(slot, claims, IF ok THEN {c[2] : c \in claims} ELSE {})
        there  == {c \in claims : Names(sl, c)}
    IN  /\ claims # {}
        /\ ~ok => Can("fail")
        /\ \E job \in Cascades(r, there) :
              /\ jobs' = jobs \cup job
              /\ slot' = [s \in Slots |-> IF \E c \in ClaimsOf(job) : c[1] = s
                                          THEN [sl[s] EXCEPT !.refs = @ + 1] ELSE sl[s]]
        /\ req' = [req EXCEPT ![r] = Gone(me)]
        /\ heard' = IF Hears(me) THEN heard \cup {r} ELSE heard
        /\ UNCHANGED <<queue, has, polled>>

\* on_request_finished: when all is done, or at any moment. Its questions are let go at once.
Live == {"waiting", "found", "running", "storing"}
Done == IF Can("store") THEN "storing" ELSE "running"
Finish(r) ==
    LET waitless == StopsWaiting(slot, r)
        me       == [Forgets(req[r]) EXCEPT !.phase = "leaving", !.end = 0, !.passed = FALSE,
                                            !.late = FALSE, !.preempted = FALSE]
    IN  /\ req[r].phase \in (IF Can("finish") THEN Live ELSE {Done})
        /\ slot' = waitless.slot
        /\ queue' = waitless.queue
        /\ req' = [req EXCEPT ![r] = Gone(me)]
        /\ heard' = IF Hears(me) THEN heard \cup {r} ELSE heard
        /\ UNCHANGED <<jobs, has, polled>>

\* It starts over, but for how often it was deferred. Once in its life, here.
Preempt(r) ==
    LET waitless == StopsWaiting(slot, r)
    IN  /\ Can("preempt") /\ ~req[r].preempted
        /\ req[r].phase \in Live
        /\ slot' = waitless.slot
        /\ queue' = waitless.queue
        /\ req' = [req EXCEPT ![r] = [Forgets(@) EXCEPT !.phase = "waiting", !.end = 0,
                                                        !.preempted = TRUE]]
        /\ UNCHANGED <<jobs, has, heard, polled>>

(***************************************************************************)
(* The tier reports a job; it is taken in before the first pass or store   *)
(* of a step, or at its end if there was none.                             *)
(***************************************************************************)
KeysOf(j) == {c[2] : c \in j.claims}
Outcomes(j) == IF Can("fail") THEN SUBSET KeysOf(j) ELSE {KeysOf(j)}

Reported(j, good) ==
    /\ ~polled
    /\ slot' = IF j.kind = "load" THEN Written(slot, j.claims, good) ELSE Unread(slot, j.claims)
    /\ has' = IF j.kind = "load" THEN has ELSE has \cup good
    /\ jobs' = jobs \ {j}
    /\ UNCHANGED <<req, queue, heard, polled>>

\* on_schedule_end: promotions go to the tier, one job for each request that waits longest for
\* some of them; a job that is refused has failed. The step's pins end, and the tier answers.
OwnerOf(c) == slot[c[1]].waiters[1]
Owners == {OwnerOf(c) : c \in queue}
StepEnd(refused) ==
    LET mine(r) == {c \in queue : OwnerOf(c) = r}
        sl      == Written(slot, UNION {mine(r) : r \in refused}, {})
    IN  /\ refused \subseteq (IF Can("refuse") THEN Owners ELSE {})
        /\ jobs' = jobs \cup {Job("load", r, mine(r)) : r \in Owners \ refused}
        /\ queue' = {}
        /\ slot' = [s \in Slots |-> [sl[s] EXCEPT !.pinned = FALSE]]
        /\ req' = [r \in R |-> [req[r] EXCEPT
                !.phase = IF @ = "found" THEN "waiting" ELSE @,
                !.end = IF req[r].phase = "found" THEN 0 ELSE @,
                !.passed = FALSE,
                !.asked = {}, !.answered = @ \cup req[r].asked]]
        /\ polled' = FALSE
        /\ UNCHANGED <<has, heard>>

\* reset_cache, between steps: a slot that is written or read stays with who does it.
Reset ==
    /\ Can("reset")
    /\ ~polled /\ queue = {}
    /\ \E s \in Slots : Used(slot[s]) /\ ~slot[s].dropped
    /\ slot' = [s \in Slots |->
                  IF Used(slot[s])
                  THEN Kept([slot[s] EXCEPT !.dropped = TRUE, !.pinned = FALSE, !.waiters = <<>>])
                  ELSE Free]
    /\ UNCHANGED <<req, queue, jobs, has, heard, polled>>

\* With a bound on deferrals, which counts them and the steps of writes, and here is reached at any
\* moment: from now on a request reads a miss for whatever is not readable ...
RequestLate(r) ==
    /\ Can("bound") /\ req[r].phase = "waiting" /\ ~req[r].late
    /\ req' = [req EXCEPT ![r].late = TRUE]
    /\ UNCHANGED <<slot, queue, jobs, has, heard, polled>>

\* ... and nobody begins to wait for a write.
WriteOld(s) ==
    /\ Can("bound") /\ Writing(slot[s]) /\ ~slot[s].old
    /\ slot' = [slot EXCEPT ![s].old = TRUE]
    /\ UNCHANGED <<req, queue, jobs, has, heard, polled>>

(***************************************************************************)
(* The machine.                                                            *)
(***************************************************************************)
Init ==
    /\ slot = [s \in Slots |-> Free]
    /\ req = [r \in R |-> Blank]
    /\ queue = {} /\ jobs = {}
    /\ has = Has
    /\ heard = {}
    /\ polled = FALSE

Request(r) ==
    \/ Arrive(r) \/ Pass(r) \/ Admit(r) \/ CompleteLoad(r)
    \/ PrepareStore(r) \/ (\E ok \in BOOLEAN : CompleteStore(r, ok))
    \/ Finish(r) \/ Preempt(r) \/ RequestLate(r)
JobReport == \E j \in jobs : \E good \in Outcomes(j) : Reported(j, good)

Next ==
    \/ \E r \in R : Request(r)
    \/ JobReport
    \/ \E refused \in SUBSET R : StepEnd(refused)
    \/ Reset
    \/ \E s \in Slots : WriteOld(s)
Spec == Init /\ [][Next]_vars

(***************************************************************************)
(* What must hold of every state.                                          *)
(***************************************************************************)
Writers == queue \cup ClaimsOf(Loads) \cup UNION {req[r].filling : r \in R}
Readers == ClaimsOf(Stores) \cup UNION {req[r].reading : r \in R}

TypeInv ==
    /\ \A s \in Slots :
          /\ slot[s].key \in K \cup {"none"} /\ slot[s].bytes \in K \cup {"junk"}
          /\ slot[s].refs \in Nat /\ {slot[s].waiters[i] : i \in DOMAIN slot[s].waiters} \subseteq R
          /\ Used(slot[s]) \/ slot[s] = Free
    /\ \A r \in R :
          /\ req[r].phase \in Live \cup {"new", "leaving", "gone"}
          /\ req[r].end # 0 => req[r].phase \in {"found", "running"}
    /\ has \subseteq K /\ heard \subseteq R /\ polled \in BOOLEAN

\* No block has two slots.
OnceInv == \A k \in K : Cardinality(HolderOf(slot, k)) <= 1

\* No slot is reused under a writer or a reader: what a claim names is there, being written if
\* the claim is a writer's and readable if it is a reader's.
SlotInv ==
    /\ \A c \in Writers : Names(slot, c) /\ Writing(slot[c[1]])
    /\ \A c \in Readers : Names(slot, c) /\ slot[c[1]].ready

\* What is called readable holds the bytes of its key.
ReadyInv == \A s \in Slots : slot[s].ready => slot[s].bytes = slot[s].key

\* What prepare_load would be given now is in the primary, and readable.
LoadInv ==
    \A r \in R : req[r].phase = "found" =>
        \A k \in Needed(r) : Here(slot, k) /\ slot[SlotOf(slot, k)].ready

\* One write of a key for a request.
OneWriteInv == \A r \in R : \A v, w \in req[r].waits : v[1] = w[1] => v = w

\* Every write has one writer, and every job something to do. (That a job goes with its own report
\* and with nothing else is JobProp.)
JobInv ==
    /\ \A s \in Slots : Writing(slot[s]) =>
          Cardinality({<<"queue", c>> : c \in {d \in queue : d[1] = s}}
                 \cup {<<"load", j>> : j \in {i \in Loads : \E c \in i.claims : c[1] = s}}
                 \cup {<<"fill", r>> : r \in {q \in R : \E c \in req[q].filling : c[1] = s}}) = 1
    /\ \A j \in jobs : j.claims # {}

\* The tier got no job of a request after it had heard that it finished.
FinishInv == \A j \in jobs : ~j.late

\* Conservation of pins: as many references as there are readers, and nobody else keeps a block.
PinsInv ==
    \A s \in Slots :
        /\ slot[s].refs = Cardinality({r \in R : \E c \in req[r].reading : c[1] = s})
                         + Cardinality({j \in Stores : \E c \in j.claims : c[1] = s})
        /\ slot[s].pinned => slot[s].ready /\ polled

\* The line at a slot is exactly those who wait for its write (but for who was deferred too
\* often); who waits is waiting, and stands in a line once.
WaitersInv ==
    \A s \in Slots, r \in R :
        LET line   == slot[s].waiters
            stands == \E i \in DOMAIN line : line[i] = r
            waits  == ~slot[s].dropped /\ <<slot[s].key, slot[s].write>> \in req[r].waits
        IN  /\ stands => waits /\ req[r].phase \in {"waiting", "found"}
            /\ waits /\ ~req[r].late => stands
            /\ \A i, j \in DOMAIN line : line[i] = line[j] => i = j

\* The tier has heard of a finish exactly when nothing is left that could be submitted.
HeardInv ==
    \A r \in R :
        /\ req[r].phase \in {"leaving", "gone"} => ((r \in heard) <=> req[r].filling = {})
        /\ req[r].phase \in Live => r \notin heard

\* A promotion that the tier was not asked for yet is wanted by somebody.
QueueInv == \A c \in queue : slot[c[1]].waiters # <<>>

\* All requests gone, all jobs reported, a step ended: nothing is left but blocks.
EmptyInv ==
    (\A r \in R : req[r].phase \in {"new", "gone"}) /\ jobs = {} /\ ~polled =>
        /\ queue = {}
        /\ \A r \in R : req[r] = [Blank EXCEPT !.phase = req[r].phase]
        /\ \A s \in Slots :
              \/ slot[s] = Free
              \/ slot[s] = [Begun(slot[s].key, slot[s].write)
                               EXCEPT !.ready = TRUE, !.bytes = slot[s].key]
=============================================================================
