//! How much the server takes on. What is over the bound is refused at once, before any work is done for it.

use crate::problem::Problem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    generations: usize,
    prompt_tokens: usize,
}

/// The bound and what stands against it.
#[derive(Debug)]
pub struct Admission {
    limit: Load,
    load: Mutex<Load>,
}

impl Admission {
    /// An empty admission with these bounds.
    pub fn new(generations: usize, prompt_tokens: usize) -> Arc<Self> {
        Arc::new(Self { limit: Load { generations, prompt_tokens }, load: Mutex::default() })
    }

    /// Room for `choices` generations.
    ///
    /// # Errors
    /// There is none now, or never would be.
    pub fn admit(self: &Arc<Self>, choices: usize) -> Result<Permit, Problem> {
        let limit = self.limit.generations;
        if choices > limit {
            return Err(Problem::invalid("n", format!("must be at most {limit} on this server, is {choices}")));
        }
        let mut load = self.lock();
        if load.generations + choices > limit {
            return Err(Problem::Overloaded(format!("{} of {limit} generations run or wait", load.generations)));
        }
        load.generations += choices;
        Ok(Permit { admission: Arc::clone(self), held: Load { generations: choices, prompt_tokens: 0 } })
    }

    fn lock(&self) -> MutexGuard<'_, Load> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room that was given; it returns when dropped.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<Admission>,
    held: Load,
}

impl Permit {
    /// Takes room for the prompt as well. A prompt that is alone always has it.
    ///
    /// # Errors
    /// There is none now.
    pub fn take_prompt(&mut self, tokens: usize) -> Result<(), Problem> {
        let limit = self.admission.limit.prompt_tokens;
        let mut load = self.admission.lock();
        if load.prompt_tokens > 0 && load.prompt_tokens.saturating_add(tokens) > limit {
            return Err(Problem::Overloaded(format!("{} of {limit} prompt tokens run or wait", load.prompt_tokens)));
        }
        load.prompt_tokens += tokens;
        self.held.prompt_tokens += tokens;
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut load = self.admission.lock();
        load.generations -= self.held.generations;
        load.prompt_tokens -= self.held.prompt_tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_and_returned() {
        let admission = Admission::new(2, 10);
        let mut first = admission.admit(1).unwrap();
        first.take_prompt(50).unwrap();
        let mut second = admission.admit(1).unwrap();
        assert!(matches!(second.take_prompt(1), Err(Problem::Overloaded(_))));
        assert!(matches!(admission.admit(1), Err(Problem::Overloaded(_))));
        assert!(matches!(admission.admit(3), Err(Problem::Invalid { .. })));
        drop(first);
        second.take_prompt(1).unwrap();
        drop(second);
        admission.admit(2).unwrap();
    }
}
