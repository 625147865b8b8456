//! What a user asks where a run's ranks are.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fs_schedule::Schedule;
use parking_lot::Mutex;

use super::look::Look;
use super::sighting::Sighting;
use super::table::{some, table};
use crate::transport::TransportError;
use crate::transport::control::Control;
use crate::transport::witness::{Answers, Witness};

/// How long processes are waited for, and after which another question is not the same one.
const PATIENCE: Duration = Duration::from_secs(1);

/// Tells somebody.
type Say = dyn Fn(&str) + Send + Sync;

/// Says where all ranks of a run are: when it is asked, and when they have waited for too long. Given to a session with
/// its [options](crate::Options::watch), it knows the run that was begun last.
#[derive(Default)]
pub struct Watch {
    say: Option<Box<Say>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    run: Option<(Arc<Schedule>, Arc<dyn Control>)>,
    look: Option<Look>,
    /// What was seen when somebody had waited too long.
    frozen: Option<Vec<u8>>,
    /// When it was asked last, and whether answers are waited for.
    last: Option<Instant>,
    asking: bool,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("says", &self.say.is_some()).finish_non_exhaustive()
    }
}

impl Watch {
    /// Says it with `say`: some lines, once for all processes where the first one can be heard.
    pub fn new(say: impl Fn(&str) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { say: Some(Box::new(say)), state: Mutex::default() })
    }

    /// Asks all ranks where they are, and says it from a thread of its own, a second later at most. Neither waits nor
    /// holds up the run. Who asks again within a second gets one answer.
    pub fn ask(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            if state.asking || state.last.is_some_and(|last| last.elapsed() < PATIENCE) {
                return;
            }
            (state.asking, state.last) = (true, Some(Instant::now()));
        }
        let own = Arc::clone(self);
        let inquire = move || {
            own.inquire();
            own.state.lock().asking = false;
        };
        if std::thread::Builder::new().name("inquiry".into()).spawn(inquire).is_err() {
            self.state.lock().asking = false;
        }
    }

    /// After a run has failed: says where all ranks were, if it failed because somebody was waited for too long.
    pub fn explain(&self) {
        let run = {
            let state = self.state.lock();
            state.run.clone().filter(|_| state.frozen.is_some())
        };
        if let Some((schedule, control)) = run {
            self.tell(&schedule, control.as_ref(), control.last_words());
        }
    }

    fn inquire(&self) {
        let run = self.state.lock().run.clone();
        match (run, &self.say) {
            (Some((schedule, control)), _) => {
                self.tell(&schedule, control.as_ref(), control.inquire(PATIENCE));
            }
            (None, Some(say)) => say("where the ranks are: there are none yet\n"),
            (None, None) => {}
        }
    }

    fn tell(&self, schedule: &Schedule, control: &dyn Control, answers: Answers) {
        let Some(say) = &self.say else { return };
        let processes = control.processes();
        let programs = (&schedule.train, schedule.evaluation.as_ref());
        let read = |said: Result<Vec<u8>, String>| {
            said.and_then(|bytes| Sighting::read(&bytes).map_err(|error| error.to_string()))
        };
        match answers {
            Answers::Elsewhere => {}
            Answers::All(said) => {
                let of: Vec<_> = processes.iter().cloned().zip(said.into_iter().map(read)).collect();
                say(&table(programs, &of));
            }
            Answers::Own(bytes) => {
                let own = (processes[control.process()].clone(), read(Ok(bytes)));
                let first = (processes[0].clone(), Err("its process says nothing".to_owned()));
                say(&table(programs, &[first, own]));
            }
        }
    }

    /// A session speaks to others through `control`.
    pub(crate) fn attach(&self, schedule: &Arc<Schedule>, control: &Arc<dyn Control>) {
        let mut state = self.state.lock();
        state.run = Some((Arc::clone(schedule), Arc::clone(control)));
        (state.look, state.frozen) = (None, None);
    }

    /// Its ranks run a program.
    pub(crate) fn begin(&self, look: Look) {
        self.state.lock().look = Some(look);
    }

    /// They do not any more.
    pub(crate) fn end(&self) {
        self.state.lock().look = None;
    }

    /// For who speaks to other processes.
    pub(crate) fn witness(self: &Arc<Self>) -> Weak<dyn Witness> {
        let own: Weak<Self> = Arc::downgrade(self);
        own
    }

    fn see(state: &State) -> Vec<u8> {
        if let Some(look) = &state.look {
            return Sighting::Running(look.running()).write();
        }
        let gathering = state.run.as_ref().and_then(|(_, control)| control.gathering());
        let what = gathering.map_or_else(
            || "between runs".to_owned(),
            |(what, ranks)| format!("gathers {what}, and waits for {}", some(&ranks)),
        );
        Sighting::Else(what).write()
    }
}

impl Witness for Watch {
    fn testify(&self) -> Vec<u8> {
        let state = self.state.lock();
        state.frozen.clone().unwrap_or_else(|| Self::see(&state))
    }

    fn freeze(&self) {
        let mut state = self.state.lock();
        if state.frozen.is_none() {
            state.frozen = Some(Self::see(&state));
        }
    }

    fn overdue(&self, least: Duration) -> Option<TransportError> {
        self.state.lock().look.as_ref()?.overdue(least)
    }

    fn asked(self: Arc<Self>) {
        self.ask();
    }
}
