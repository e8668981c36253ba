------------------------------- MODULE Kernel -------------------------------
(* The kernel of Holdfast: who may write to a job, and when.                  *)
(*                                                                            *)
(* One action is one transaction in Postgres, or one thing that the world     *)
(* does: a process dies, a lease runs out, a reply is lost on the way. Every  *)
(* action names the file whose statement it stands for; a change there that   *)
(* is not a change here makes this file a lie.                                *)
(*                                                                            *)
(* `Wrong` names the mistakes that a run makes on purpose. It is empty for    *)
(* the system as designed; each name in it swaps one rule for the rule that   *)
(* a hurried author would write, and must break the property that the rule    *)
(* is there for. README.md lists them.                                        *)
EXTENDS Integers, FiniteSets, Sequences, TLC

CONSTANTS
    Jobs,         \* all of them are parents of one fan-in, and each has one next step
    Lockers,      \* the jobs that need the one named lock
    Workers,      \* incarnations: a restarted process is another member, never the same
    CrashBudget,  \* how often a job is rescued before it fails
    ErrorBudget,  \* how often it is retried before it fails
    MaxClaims,    \* how many attempts there may be in all, where a run asks for FewClaims
    MaxCrashes,   \* how many processes may die; at least one is left to do the work
    LostReplies,  \* TRUE: a commit may stand although the process that sent it never hears so
    Strays,       \* TRUE: a worker gives back what is held in its name without its knowing
    MaxRuntime,   \* TRUE: an attempt that runs too long is taken from whoever holds it
    Sweep,        \* TRUE: jobs that wait for a free lock are looked for now and then
    Wrong,        \* the mistakes of this run
    None

Terminal == {"completed", "failed", "cancelled"}
States   == {"pending", "blocked", "running"} \cup Terminal

Mistakes == {"finish without fence", "cancel keeps fence", "number given back",
             "kid after finish", "no unique step", "kid without fence",
             "unlock by job", "wake after release", "wake skips locked", "cancel swallows wake",
             "block from snapshot", "fan-in from snapshot",
             "rescue by job", "rescue without lease", "stray by job"}

ASSUME /\ Lockers \subseteq Jobs
       /\ MaxCrashes < Cardinality(Workers)
       /\ Wrong \subseteq Mistakes

Is(mistake) == mistake \in Wrong

VARIABLES
    \* Tables.
    row,     \* jobs: state, attempt (0 is NULL), holder, no (attempt_no), errors, crashes, due
    lock,    \* the row of the named lock: None, or whose it is
    kids,    \* how many rows stand under (parent, step), for each parent
    joins,   \* two fan-ins over all jobs, by if_parent_fails: parents left, and the state
    lease,   \* workers: "live" or "lapsed" by the clock of the database
    \* Processes.
    up,      \* which of them exist
    thinks,  \* the attempts that each believes to hold: true or long out of date
    \* Only mistakes use these two; both stay empty in the system as designed.
    owes,    \* what a process still has to do after its commit
    seen,    \* what was read in one transaction and is acted on in a later one
    \* History, which no action reads.
    given,   \* the attempt ids that were ever handed out, for each job
    claims,  \* how many claims there were
    ends,    \* every terminal write that was accepted, in order
    robbed   \* was an attempt taken from a worker that was at it, under a live lease?

tables    == <<row, lock, kids, joins, lease>>
processes == <<up, thinks>>
slips     == <<owes, seen>>
history   == <<given, claims, ends, robbed>>
vars      == <<tables, processes, slips, history>>

NothingSeen == [busy |-> {}, silent |-> {}, ended |-> {}]

Init ==
    /\ row    = [j \in Jobs |-> [state |-> "pending", attempt |-> 0, holder |-> None, no |-> 0,
                                 errors |-> 0, crashes |-> 0, due |-> TRUE]]
    /\ lock   = None
    /\ kids   = [j \in Jobs |-> 0]
    /\ joins  = [policy \in {"run", "cancel"} |-> [left |-> Cardinality(Jobs), state |-> "blocked"]]
    /\ lease  = [w \in Workers |-> "live"]
    /\ up     = [w \in Workers |-> TRUE]
    /\ thinks = [w \in Workers |-> {}]
    /\ owes   = [w \in Workers |-> {}]
    /\ seen   = NothingSeen
    /\ given  = [j \in Jobs |-> {}]
    /\ claims = [j \in Jobs |-> 0]
    /\ ends   = [j \in Jobs |-> <<>>]
    /\ robbed = FALSE

-----------------------------------------------------------------------------
(* The shared half of every transaction that takes an attempt off a job.      *)

Waiters(rows) == {k \in Jobs : rows[k].state = "blocked"}

\* jobs/locks.py. Which waiters a release wakes is left open, so the result holds for one, for some and for all.
Woken(rows) ==
    IF Waiters(rows) = {} THEN {rows}
    ELSE {[k \in Jobs |-> IF k \in woken THEN [rows[k] EXCEPT !.state = "pending"] ELSE rows[k]]
          : woken \in SUBSET Waiters(rows) \ (IF Is("wake skips locked") THEN {} ELSE {{}})}

\* jobs/pipelines.py. A fan-in counts down on its own row, in the transaction that ends a parent. The row is the meeting
\* point of two parents that end at once; a count of the siblings would be read from two snapshots and meet nowhere.
\* The one that needs all its parents ("cancel") is cancelled by the first that did not complete.
Counted(join) == [left |-> join.left - 1, state |-> IF join.left = 1 THEN "pending" ELSE join.state]

CountDown(j, state) ==
    IF Is("fan-in from snapshot")
    THEN joins' = IF \E s \in seen.ended : s[1] = j /\ s[2] \cup {j} = Jobs
                  THEN [joins EXCEPT !["run"].state = "pending"] ELSE joins
    ELSE joins' = [policy \in {"run", "cancel"} |->
                      IF joins[policy].state # "blocked" THEN joins[policy]
                      ELSE IF policy = "run" \/ state = "completed" THEN Counted(joins[policy])
                      ELSE [joins[policy] EXCEPT !.state = "cancelled"]]

\* The row of j becomes `new`; the lock of attempt a goes, a waiter wakes, the fan-in counts down: all or nothing.
\* `own` says whether the writer has the right to a terminal write; `waker` is the process that would wake too late.
LetGo(j, new, a, own, waker) ==
    LET frees  == lock # None /\ lock.job = j /\ lock.attempt = a
        \* A woken job that goes away without its turn hands the wake-up on: the lock is free and nobody else will.
        hands  == j \in Lockers /\ row[j].state = "pending" /\ lock = None /\ ~Is("cancel swallows wake")
        late   == Is("wake after release") /\ waker # None
        after  == [row EXCEPT ![j] = new]
    IN  /\ lock' = IF frees THEN None ELSE lock
        /\ row' \in IF (frees \/ hands) /\ ~late THEN Woken(after) ELSE {after}
        /\ IF new.state \in Terminal
           THEN /\ ends' = [ends EXCEPT ![j] = Append(@, [state |-> new.state, own |-> own])]
                /\ CountDown(j, new.state)
           ELSE UNCHANGED <<ends, joins>>

Free(r, state) == [r EXCEPT !.state = state, !.attempt = 0, !.holder = None]

GivenBack(r) == IF Is("number given back") THEN [r EXCEPT !.no = @ - 1] ELSE r

\* A reply that never arrives leaves the process where it was, and it asks again: the commit stands all the same.
Unheard(before) == IF LostReplies THEN {before} ELSE {}

Forget(w, j, a) == thinks' \in {[thinks EXCEPT ![w] = @ \ {<<j, a>>}]} \cup Unheard(thinks)

-----------------------------------------------------------------------------
(* Claim.                                                                     *)

\* jobs/claim.py: pending -> running under a fresh attempt id, with the lock in the same transaction. That the lease
\* is live is not asked: a claim just after the lapse and a claim just before it reach the same state.
Claim(w, j) ==
    LET id == row[j].no + 1
    IN  /\ up[w] /\ row[j].state = "pending" /\ row[j].due
        /\ j \in Lockers => lock = None
        /\ row'    = [row EXCEPT ![j] = [@ EXCEPT !.state = "running", !.attempt = id, !.holder = w, !.no = id]]
        /\ lock'   = IF j \in Lockers THEN [job |-> j, attempt |-> id] ELSE lock
        /\ thinks' \in {[thinks EXCEPT ![w] = @ \cup {<<j, id>>}]} \cup Unheard(thinks)
        /\ given'  = [given EXCEPT ![j] = @ \cup {id}]
        /\ claims' = [claims EXCEPT ![j] = @ + 1]
        /\ UNCHANGED <<kids, joins, lease, up, slips, ends, robbed>>

\* jobs/claim.py with jobs/locks.py: the lock is busy, so the job waits off the claim index. The statement holds the
\* lock's row while it decides, so a release comes wholly before it or wholly after it.
Block(j) ==
    /\ row[j].state = "pending" /\ row[j].due /\ j \in Lockers /\ lock # None
    /\ ~Is("block from snapshot")
    /\ row' = [row EXCEPT ![j].state = "blocked"]
    /\ UNCHANGED <<lock, kids, joins, lease, processes, slips, history>>

\* Mistake: look at the lock, and block the job in a later statement, when the holder may be gone.
SeeBusy(j) ==
    /\ Is("block from snapshot") /\ row[j].state = "pending" /\ row[j].due /\ j \in Lockers /\ lock # None
    /\ seen' = [seen EXCEPT !.busy = @ \cup {j}]
    /\ UNCHANGED <<tables, processes, owes, history>>

BlockLate(j) ==
    /\ j \in seen.busy
    /\ seen' = [seen EXCEPT !.busy = @ \ {j}]
    /\ row'  = IF row[j].state = "pending" THEN [row EXCEPT ![j].state = "blocked"] ELSE row
    /\ UNCHANGED <<lock, kids, joins, lease, processes, owes, history>>

\* jobs/promote.py, promote_due: the backoff of a job that failed or was rescued is over.
ComesDue(j) ==
    /\ row[j].state = "pending" /\ ~row[j].due
    /\ row' = [row EXCEPT ![j].due = TRUE]
    /\ UNCHANGED <<lock, kids, joins, lease, processes, slips, history>>

\* jobs/promote.py, wake_forgotten: the net behind the wake-ups. The system as designed never falls into it, so the
\* configurations leave it out, except the one that shows how far it carries.
WakeForgotten ==
    /\ Sweep /\ lock = None /\ Waiters(row) # {}
    /\ row' \in Woken(row) \ {row}
    /\ UNCHANGED <<lock, kids, joins, lease, processes, slips, history>>

-----------------------------------------------------------------------------
(* What a process writes under the attempt that it believes to hold.          *)

\* The WHERE of every such write: the attempt on the row, and nothing else. The state need not be asked, for the
\* attempt is there exactly while the job is held (HeldExactlyWhileRunning, a CHECK in the database).
Guard(j, a) == IF Is("finish without fence") THEN row[j].state = "running" ELSE row[j].attempt = a

Believes(w, j, a) == up[w] /\ <<j, a>> \in thinks[w]

KidInserted(j) == [kids EXCEPT ![j] = IF Is("no unique step") THEN @ + 1 ELSE 1]

\* jobs/finish.py: running -> completed; unlock, wake, next step and fan-in commit with it.
Finish(w, j, a) ==
    /\ Believes(w, j, a) /\ Guard(j, a)
    /\ Is("fan-in from snapshot") => \E s \in seen.ended : s[1] = j
    /\ LetGo(j, Free(row[j], "completed"), a, row[j].attempt = a, w)
    /\ kids' = IF Is("kid after finish") THEN kids ELSE KidInserted(j)
    /\ owes' = [owes EXCEPT ![w] = @ \cup (IF Is("kid after finish") THEN {<<"kid", j>>} ELSE {})
                                     \cup (IF Is("wake after release") /\ lock' # lock THEN {<<"wake", j>>} ELSE {})]
    /\ Forget(w, j, a)
    /\ UNCHANGED <<lease, up, seen, given, claims, robbed>>

\* jobs/outcome.py decides and jobs/finish.py writes: the handler failed. running -> pending after a backoff, or failed
\* when the budget of errors is spent.
Retry(w, j, a) ==
    LET spent == row[j].errors = ErrorBudget
        new   == IF spent THEN Free(row[j], "failed")
                 ELSE [Free(GivenBack(row[j]), "pending") EXCEPT !.errors = @ + 1, !.due = FALSE]
    IN  /\ Believes(w, j, a) /\ Guard(j, a)
        /\ ~Is("fan-in from snapshot")
        /\ LetGo(j, new, a, row[j].attempt = a, w)
        /\ owes' = [owes EXCEPT ![w] = @ \cup (IF Is("wake after release") /\ lock' # lock
                                               THEN {<<"wake", j>>} ELSE {})]
        /\ Forget(w, j, a)
        /\ UNCHANGED <<kids, lease, up, seen, given, claims, robbed>>

\* jobs/finish.py raises ClaimLost: the statement matched no row, so its transaction is rolled back, and with it the
\* unlock and the next step that the process wanted to write. It learns that its attempt is over and forgets it.
Refused(w, j, a) ==
    /\ Believes(w, j, a) /\ ~Guard(j, a)
    /\ thinks' = [thinks EXCEPT ![w] = @ \ {<<j, a>>}]
    \* Mistake: a clean-up that unlocks by job frees the lock of the attempt that came after.
    /\ IF Is("unlock by job") /\ lock # None /\ lock.job = j
       THEN lock' = None /\ row' \in Woken(row)
       ELSE UNCHANGED <<lock, row>>
    \* Mistake: the next step is written by a statement that asks for no attempt.
    /\ kids' = IF Is("kid without fence") THEN KidInserted(j) ELSE kids
    /\ UNCHANGED <<joins, lease, up, slips, history>>

\* Mistake: the fan-in counts its ended siblings in a snapshot that is older than the commit.
SeeEnded(w, j, a) ==
    /\ Is("fan-in from snapshot") /\ Believes(w, j, a) /\ Guard(j, a)
    /\ \A s \in seen.ended : s[1] # j
    /\ seen' = [seen EXCEPT !.ended = @ \cup {<<j, {k \in Jobs : row[k].state \in Terminal}>>}]
    /\ UNCHANGED <<tables, processes, owes, history>>

\* Mistake: what should have been in the finish transaction, in a second one, if the process lives to send it.
PayKid(w, j) ==
    /\ up[w] /\ <<"kid", j>> \in owes[w]
    /\ kids' = KidInserted(j)
    /\ owes' \in {[owes EXCEPT ![w] = @ \ {<<"kid", j>>}]} \cup Unheard(owes)
    /\ UNCHANGED <<row, lock, joins, lease, processes, seen, history>>

PayWake(w, j) ==
    /\ up[w] /\ <<"wake", j>> \in owes[w]
    /\ owes' = [owes EXCEPT ![w] = @ \ {<<"wake", j>>}]
    /\ row' \in Woken(row)
    /\ UNCHANGED <<lock, kids, joins, lease, processes, seen, history>>

-----------------------------------------------------------------------------
(* What others write: the sweeper and the operator.                           *)

Rescued(r) ==
    IF r.crashes = CrashBudget THEN Free(r, "failed")
    ELSE [Free(GivenBack(r), "pending") EXCEPT !.crashes = @ + 1, !.due = (r.crashes = 0)]

IsAtIt(w, j) == lease[w] = "live" /\ <<j, row[j].attempt>> \in thinks[w]

TakeAway(j) ==
    /\ LetGo(j, Rescued(row[j]), row[j].attempt, TRUE, None)
    /\ robbed' = (robbed \/ IsAtIt(row[j].holder, j))
    /\ UNCHANGED <<kids, lease, processes, given, claims>>

\* jobs/rescue.py, RESCUE: the lease of the holder is over. Lease and attempt are looked at by the statement that takes the
\* job, so an attempt that began or was renewed a moment ago is left alone.
Rescue(j) ==
    /\ row[j].state = "running" /\ lease[row[j].holder] = "lapsed"
    /\ Wrong \cap {"rescue by job", "rescue without lease"} = {}
    /\ TakeAway(j)
    /\ UNCHANGED slips

\* jobs/rescue.py, RESCUE_OVERDUE: the attempt ran beyond its longest time; the lease of its holder does not matter. It
\* may come at any moment, so it is also a keeper that gives back the jobs of a process which it saw die.
Overrun(j) ==
    /\ MaxRuntime /\ row[j].state = "running"
    /\ LetGo(j, Rescued(row[j]), row[j].attempt, TRUE, None)
    /\ UNCHANGED <<kids, lease, processes, slips, given, claims, robbed>>

\* jobs/renew.py finds it and jobs/rescue.py, RESCUE_WORKER, writes: the answer to the claim was lost, so the job is held
\* in the name of a worker that lives, renews, and knows nothing of it. No lease will ever end that.
IsStray(j) ==
    /\ row[j].state = "running" /\ up[row[j].holder]
    /\ <<j, row[j].attempt>> \notin thinks[row[j].holder]

GiveBackStray(j) ==
    /\ Strays /\ IsStray(j) /\ ~Is("stray by job")
    /\ TakeAway(j)
    /\ UNCHANGED slips

\* Mistake: list what is silent, and take it later: by the id of the job, or without another look at the lease.
SeeSilent(j) ==
    /\ \/ Wrong \cap {"rescue by job", "rescue without lease"} # {} /\ row[j].state = "running"
          /\ lease[row[j].holder] = "lapsed"
       \/ Is("stray by job") /\ IsStray(j)
    /\ seen' = [seen EXCEPT !.silent = @ \cup {<<j, row[j].attempt, row[j].holder>>}]
    /\ UNCHANGED <<tables, processes, owes, history>>

TakeLate(j, a, w) ==
    /\ <<j, a, w>> \in seen.silent /\ row[j].state = "running"
    /\ Is("rescue without lease") => row[j].attempt = a
    /\ Is("stray by job") => row[j].holder = w
    /\ TakeAway(j)
    /\ seen' = [seen EXCEPT !.silent = @ \ {<<j, a, w>>}]
    /\ UNCHANGED owes

\* jobs/cancel.py: forced, from any state that is not an end. It rotates the fence, so the holder is refused from now on.
Cancel(j) ==
    LET new == IF Is("cancel keeps fence") THEN [row[j] EXCEPT !.state = "cancelled"] ELSE Free(row[j], "cancelled")
    IN  /\ row[j].state \notin Terminal
        /\ ~Is("fan-in from snapshot")
        /\ LetGo(j, new, row[j].attempt, TRUE, None)
        /\ UNCHANGED <<kids, lease, processes, slips, given, claims, robbed>>

-----------------------------------------------------------------------------
(* The world.                                                                 *)

\* A lease may lapse at any moment: that is every clock, every pause, every stalled heartbeat and every partition. A
\* process that is up and lapsed is the zombie: it goes on, and whatever it still sends arrives at a time of its choice.
Lapse(w) ==
    /\ lease[w] = "live"
    /\ \E j \in Jobs : row[j].holder = w  \* of an idle worker nobody would see it
    /\ lease' = [lease EXCEPT ![w] = "lapsed"]
    /\ UNCHANGED <<row, lock, kids, joins, processes, slips, history>>

\* jobs/renew.py: a late beat revives the lease. What was rescued in between stays rescued.
Renew(w) ==
    /\ up[w] /\ lease[w] = "lapsed"
    /\ lease' = [lease EXCEPT ![w] = "live"]
    /\ UNCHANGED <<row, lock, kids, joins, processes, slips, history>>

\* A process dies between any two statements, with all that it believes and owes.
Crash(w) ==
    /\ up[w] /\ Cardinality({v \in Workers : ~up[v]}) < MaxCrashes
    /\ up'     = [up EXCEPT ![w] = FALSE]
    /\ thinks' = [thinks EXCEPT ![w] = {}]
    /\ owes'   = [owes EXCEPT ![w] = {}]
    /\ UNCHANGED <<tables, seen, history>>

-----------------------------------------------------------------------------
Slips ==
    /\ Wrong # {}
    /\ \/ \E j \in Jobs : SeeBusy(j) \/ BlockLate(j) \/ SeeSilent(j)
       \/ \E t \in seen.silent : TakeLate(t[1], t[2], t[3])
       \/ \E w \in Workers : \E t \in thinks[w] : SeeEnded(w, t[1], t[2])
       \/ \E w \in Workers, j \in Jobs : PayKid(w, j) \/ PayWake(w, j)

Work ==
    \/ \E w \in Workers : \E t \in thinks[w] :
           Finish(w, t[1], t[2]) \/ Retry(w, t[1], t[2]) \/ Refused(w, t[1], t[2])
    \/ \E j \in Jobs : Block(j) \/ ComesDue(j) \/ Rescue(j) \/ Overrun(j) \/ GiveBackStray(j)
    \/ \E w \in Workers, j \in Jobs : Claim(w, j)
    \/ WakeForgotten
    \/ Slips

World == \E w \in Workers : Lapse(w) \/ Renew(w) \/ Crash(w)

Next == Work \/ World \/ \E j \in Jobs : Cancel(j)

\* What must go on for jobs to end: as long as there is work to do, something moves. That is weaker than fairness to
\* each action, so the result is stronger: a lease may lapse and be renewed for ever, which job comes first is anybody's
\* choice, and nobody need cancel. A dead process renews nothing, so its lease does lapse.
Moves == <<row, thinks, slips>>' # <<row, thinks, slips>>

Fairness ==
    /\ []<>~(ENABLED Work) \/ []<><<Moves>>_vars
    /\ WF_vars(\E w \in Workers : ~up[w] /\ Lapse(w))

Spec     == Init /\ [][Next]_vars
FairSpec == Spec /\ Fairness

\* Nobody looks at the lease of a worker that holds nothing, so two states that differ only in it go on alike. The
\* large run counts them as one.
View == <<row, lock, kids, joins, processes, slips, history,
          [w \in Workers |-> IF \E j \in Jobs : row[j].holder = w THEN lease[w] ELSE "idle"]>>

\* A bound for the large run, over all jobs together: a few of them may be tried often, or all of them a little.
RECURSIVE Sum(_)
Sum(jobs) == IF jobs = {} THEN 0 ELSE LET j == CHOOSE j \in jobs : TRUE IN claims[j] + Sum(jobs \ {j})

FewClaims == Sum(Jobs) <= MaxClaims

-----------------------------------------------------------------------------
(* Safety.                                                                    *)

TypeOK ==
    /\ \A j \in Jobs : /\ row[j].state \in States
                       /\ row[j].attempt \in Nat /\ row[j].no \in Nat
                       /\ row[j].holder \in Workers \cup {None}
                       /\ row[j].errors \in 0..ErrorBudget /\ row[j].crashes \in 0..CrashBudget
                       /\ row[j].due \in BOOLEAN
    /\ lock # None => lock.job \in Lockers /\ lock.attempt \in given[lock.job]
    /\ joins \in [{"run", "cancel"} -> [left : 0..Cardinality(Jobs), state : {"blocked", "pending", "cancelled"}]]
    /\ lease \in [Workers -> {"live", "lapsed"}] /\ up \in [Workers -> BOOLEAN]
    /\ \A w \in Workers : \A t \in thinks[w] : t[2] \in given[t[1]]

\* The system as designed never needs a second transaction or an old look.
NoSlips == owes = [w \in Workers |-> {}] /\ seen = NothingSeen

OneTerminal == \A j \in Jobs : Len(ends[j]) <= 1 /\ (row[j].state \in Terminal <=> Len(ends[j]) > 0)

TerminalIsOwn == \A j \in Jobs : \A i \in DOMAIN ends[j] : ends[j][i].own

HeldExactlyWhileRunning ==
    \A j \in Jobs : /\ row[j].state = "running" <=> row[j].attempt # 0
                    /\ row[j].state = "running" <=> row[j].holder # None

CancelSticks ==
    \A j \in Jobs : (\E i \in DOMAIN ends[j] : ends[j][i].state = "cancelled") => row[j].state = "cancelled"

AttemptNeverReused == \A j \in Jobs : Cardinality(given[j]) = claims[j]

AttemptsWithinBudget == \A j \in Jobs : claims[j] <= 1 + CrashBudget + ErrorBudget

LockBelongsToRunning ==
    lock # None => row[lock.job].state = "running" /\ row[lock.job].attempt = lock.attempt

LockExclusive == \A j, k \in Lockers : row[j].state = "running" /\ row[k].state = "running" => j = k

RunningHasItsLock == \A j \in Lockers : row[j].state = "running" => lock # None /\ lock.job = j

\* Somebody will wake a blocked job: the holder of the lock, a job that is about to take it, or, in a run that wakes
\* after the release, a process that has not died yet.
NoLostWake ==
    (\E j \in Jobs : row[j].state = "blocked") =>
        \/ lock # None
        \/ \E k \in Lockers : row[k].state = "pending" /\ row[k].due
        \/ \E w \in Workers, k \in Jobs : <<"wake", k>> \in owes[w]

KidsOnce == \A j \in Jobs : kids[j] <= 1

KidsWithParent == \A j \in Jobs : kids[j] > 0 => row[j].state = "completed"

ParentWithKid == \A j \in Jobs : row[j].state = "completed" => kids[j] > 0

FanInFreedByLast ==
    /\ joins["run"].state = "pending" <=> \A j \in Jobs : row[j].state \in Terminal
    /\ joins["cancel"].state = "pending" <=> \A j \in Jobs : row[j].state = "completed"
    /\ joins["cancel"].state = "cancelled" <=> \E j \in Jobs : row[j].state \in {"failed", "cancelled"}

\* Only the longest runtime and a person may take a job from a worker that is at it.
NoneRobbed == ~robbed

-----------------------------------------------------------------------------
(* Liveness, under Fairness.                                                  *)

AllEnd == <>(\A j \in Jobs : row[j].state \in Terminal)

\* Rows are never taken back and jobs are few, so this is `completed ~> kid` for each of them, in one formula.
DoneHasKid == []<>(\A j \in Jobs : row[j].state = "completed" => kids[j] > 0)
=============================================================================
