//! Threads that share the chunks of one job after another.
//!
//! The caller is worker 0. Chunks are claimed one at a time by an atomic counter, so a worker that loses its core to a
//! neighbour delays at most the chunk it holds; a worker that has not started is never waited for. Between jobs a worker
//! spins for a bounded time and then parks. If waiting for started chunks eats a large share of the time (a neighbour
//! holds a core), the pool runs alone for a while and then tries again.
//!
//! One word holds `epoch | open | active`: workers join by adding to `active` while `open`, the caller closes and waits
//! for `active` to fall to zero. The job's closure is therefore alive whenever a worker runs it.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a worker looks for the next job before it parks. Longer than the serial work between two ops of a decode
/// step, much shorter than a scheduler's time slice.
const WORKER_SPIN: Duration = Duration::from_micros(12);
/// How long the caller looks for the last chunks to end before it parks.
const CALLER_SPIN: Duration = Duration::from_micros(20);
/// Jobs over which the share of waiting is taken.
const WINDOW_JOBS: u32 = 64;
/// How long the pool runs alone after a window with too much waiting.
const SOLO: Duration = Duration::from_millis(40);

const OPEN: u64 = 1 << 16;
const ACTIVE: u64 = OPEN - 1;
const EPOCH: u64 = 1 << 17;

/// Why a job ended early.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A chunk panicked.
    #[error("a kernel panicked: {message}")]
    Panic {
        /// What it said.
        message: String,
    },
    /// A worker thread could not be started.
    #[error("starting a worker thread")]
    Spawn(#[source] std::io::Error),
}

type Task<'a> = &'a (dyn Fn(usize, usize) + Sync);

struct Job {
    task: *const (dyn Fn(usize, usize) + Sync),
    chunks: usize,
}

struct State {
    word: AtomicU64,
    next: AtomicUsize,
    job: UnsafeCell<Job>,
    caller: UnsafeCell<Option<Thread>>,
    panic: Mutex<Option<String>>,
    parked: Vec<AtomicBool>,
    stop: AtomicBool,
}

// SAFETY: `job` and `caller` are written only by the caller while the word is closed and no worker is active, and read
// only by workers that joined through the word after it was opened.
unsafe impl Sync for State {}
// SAFETY: the raw pointer in `job` is only used as described above.
unsafe impl Send for State {}

/// A pool of threads, the caller among them.
pub struct Pool {
    state: Arc<State>,
    workers: Vec<JoinHandle<()>>,
    busy: AtomicBool,
    pace: Mutex<Pace>,
}

/// How much of the time goes into waiting for other workers.
struct Pace {
    jobs: u32,
    since: Instant,
    waited: Duration,
    solo_until: Option<Instant>,
}

impl Pool {
    /// A pool of `threads` workers, the caller included (at least that one).
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(threads: usize) -> Result<Self, PoolError> {
        let helpers = threads.clamp(1, ACTIVE as usize) - 1;
        fn nothing(_: usize, _: usize) {}
        let idle: Task<'static> = &nothing;
        let state = Arc::new(State {
            word: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { task: idle, chunks: 0 }),
            caller: UnsafeCell::new(None),
            panic: Mutex::new(None),
            parked: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
        });
        let mut pool = Self {
            state: state.clone(),
            workers: Vec::new(),
            busy: AtomicBool::new(false),
            pace: Mutex::new(Pace { jobs: 0, since: Instant::now(), waited: Duration::ZERO, solo_until: None }),
        };
        for worker in 1..=helpers {
            let state = state.clone();
            let builder = std::thread::Builder::new().name(format!("crit-kernel-{worker}"));
            pool.workers.push(builder.spawn(move || state.work(worker)).map_err(PoolError::Spawn)?);
        }
        Ok(pool)
    }

    /// Workers, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(chunk, worker)` for every chunk in `0..chunks` and returns when all have ended. Two calls of the task
    /// never run at once with the same `worker`. A run from within a task runs on the spot.
    ///
    /// # Errors
    /// A chunk panicked; the others have ended or were not begun.
    pub fn run(&self, chunks: usize, task: Task<'_>) -> Result<(), PoolError> {
        let alone = chunks <= 1 || self.workers.is_empty();
        if alone || self.busy.swap(true, Ordering::Acquire) {
            return run_here(chunks, task);
        }
        let result = if self.is_solo() { run_here(chunks, task) } else { self.run_shared(chunks, task) };
        self.busy.store(false, Ordering::Release);
        result
    }

    fn is_solo(&self) -> bool {
        let mut pace = self.pace.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match pace.solo_until {
            Some(until) if Instant::now() < until => true,
            Some(_) => {
                *pace = Pace { jobs: 0, since: Instant::now(), waited: Duration::ZERO, solo_until: None };
                false
            }
            None => false,
        }
    }

    fn run_shared(&self, chunks: usize, task: Task<'_>) -> Result<(), PoolError> {
        let state = &*self.state;
        // SAFETY: the word is closed and nobody is active (the last run waited for that), so only this thread touches
        // the cells. The lifetime of the task is extended only until this function returns, after all workers left.
        unsafe {
            let task: *const (dyn Fn(usize, usize) + Sync) = std::mem::transmute::<Task<'_>, Task<'static>>(task);
            *state.job.get() = Job { task, chunks };
            *state.caller.get() = Some(std::thread::current());
        }
        state.next.store(0, Ordering::Relaxed);
        let epoch = state.word.load(Ordering::Relaxed) & !(EPOCH - 1);
        state.word.store(epoch.wrapping_add(EPOCH) | OPEN, Ordering::SeqCst);
        self.wake(chunks - 1);
        state.claim(chunks, task, 0);
        let waited = state.close_and_wait();
        self.note(waited);
        match state.panic.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take() {
            Some(message) => Err(PoolError::Panic { message }),
            None => Ok(()),
        }
    }

    fn wake(&self, useful: usize) {
        for (worker, parked) in self.workers.iter().zip(&self.state.parked).take(useful) {
            if parked.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }

    fn note(&self, waited: Duration) {
        let mut pace = self.pace.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        pace.jobs += 1;
        pace.waited += waited;
        if pace.jobs < WINDOW_JOBS {
            return;
        }
        let now = Instant::now();
        let crowded = pace.waited * 4 > now - pace.since;
        let solo_until = crowded.then(|| now + SOLO);
        *pace = Pace { jobs: 0, since: now, waited: Duration::ZERO, solo_until };
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches its panics, so there is nothing to learn from the result.
            drop(worker.join());
        }
    }
}

fn run_here(chunks: usize, task: Task<'_>) -> Result<(), PoolError> {
    catch_unwind(AssertUnwindSafe(|| (0..chunks).for_each(|chunk| task(chunk, 0))))
        .map_err(|panic| PoolError::Panic { message: panic_message(&*panic) })
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_string(),
        (_, Some(text)) => text.clone(),
        _ => "no message".to_string(),
    }
}

impl State {
    /// Claims and runs chunks until none is left.
    fn claim(&self, chunks: usize, task: Task<'_>, worker: usize) {
        let run = || loop {
            let chunk = self.next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks {
                return;
            }
            task(chunk, worker);
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            self.next.store(chunks, Ordering::Relaxed);
            *self.panic.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(panic_message(&*panic));
        }
    }

    /// Lets nobody in any more and waits for those inside. Returns how long the wait lasted, if it was long.
    fn close_and_wait(&self) -> Duration {
        let word = self.word.fetch_and(!OPEN, Ordering::AcqRel);
        if word & ACTIVE == 0 {
            return Duration::ZERO;
        }
        let begun = Instant::now();
        loop {
            for _ in 0..32 {
                if self.word.load(Ordering::Acquire) & ACTIVE == 0 {
                    return begun.elapsed();
                }
                std::hint::spin_loop();
            }
            if begun.elapsed() > CALLER_SPIN {
                // The last worker out unparks; the time limit only guards against a wake-up meant for other code.
                std::thread::park_timeout(Duration::from_millis(1));
            }
        }
    }

    fn work(&self, worker: usize) {
        let mut seen = 0;
        while let Some(epoch) = self.join_next(worker, seen) {
            seen = epoch;
            // SAFETY: joined while open, so the caller waits for us and the job is alive and not written.
            let (job, caller) = unsafe { (&*self.job.get(), (*self.caller.get()).clone()) };
            // SAFETY: as above: the task outlives our being active.
            self.claim(job.chunks, unsafe { &*job.task }, worker);
            let word = self.word.fetch_sub(1, Ordering::AcqRel);
            if word & ACTIVE == 1
                && word & OPEN == 0
                && let Some(caller) = caller
            {
                caller.unpark();
            }
        }
    }

    /// Waits for a job newer than `seen` and joins it; `None` at the end of the pool.
    fn join_next(&self, worker: usize, seen: u64) -> Option<u64> {
        loop {
            if let Some(epoch) = self.spin_for(seen) {
                return Some(epoch);
            }
            let parked = &self.parked[worker - 1];
            parked.store(true, Ordering::SeqCst);
            // Looked at once more after saying so, or a job published in between would go unseen.
            let nothing_new = self.word.load(Ordering::SeqCst) & OPEN == 0 || self.epoch() == seen;
            if nothing_new && !self.stop.load(Ordering::SeqCst) {
                std::thread::park();
            }
            parked.store(false, Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
        }
    }

    fn epoch(&self) -> u64 {
        self.word.load(Ordering::SeqCst) & !(EPOCH - 1)
    }

    fn spin_for(&self, seen: u64) -> Option<u64> {
        let begun = Instant::now();
        loop {
            for _ in 0..64 {
                let word = self.word.load(Ordering::Acquire);
                let epoch = word & !(EPOCH - 1);
                let open = word & OPEN != 0 && epoch != seen;
                if open && self.word.compare_exchange(word, word + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    return Some(epoch);
                }
                std::hint::spin_loop();
            }
            if begun.elapsed() > WORKER_SPIN {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_runs_once_whatever_the_number_of_threads() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads).unwrap();
            for chunks in [0, 1, 2, 7, 1000] {
                let hits: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
                let task = |chunk: usize, worker: usize| {
                    assert!(worker < threads);
                    hits[chunk].fetch_add(1, Ordering::Relaxed);
                };
                pool.run(chunks, &task).unwrap();
                assert!(hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn many_short_jobs_neither_hang_nor_lose_chunks() {
        let pool = Pool::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        for job in 0..5_000 {
            pool.run(3, &|chunk, _| {
                sum.fetch_add(chunk + 1, Ordering::Relaxed);
            })
            .unwrap();
            if job % 1000 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(sum.into_inner(), 5_000 * 6);
    }

    #[test]
    fn a_panic_becomes_an_error_and_the_pool_goes_on() {
        let pool = Pool::new(2).unwrap();
        for _ in 0..20 {
            let result = pool.run(64, &|chunk, _| assert!(chunk != 40, "chunk forty"));
            assert!(matches!(result, Err(PoolError::Panic { message }) if message.contains("chunk forty")));
            pool.run(64, &|_, _| {}).unwrap();
        }
        let alone = Pool::new(1).unwrap();
        assert!(alone.run(1, &|_, _| panic!("no")).is_err());
    }

    #[test]
    fn a_run_inside_a_run_does_not_deadlock() {
        let pool = Pool::new(2).unwrap();
        let count = AtomicUsize::new(0);
        pool.run(4, &|_, _| {
            pool.run(5, &|_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
        })
        .unwrap();
        assert_eq!(count.into_inner(), 20);
    }
}
