//! What handlers were called with, and what they answered.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

use tidings_hooks::{Call, Handler};

/// Calls of handlers, over all lives of a store.
#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<Known>>);

#[derive(Default)]
pub struct Known {
    /// By id of the delivery.
    pub deliveries: HashMap<String, Delivered>,
    /// Deliveries whose end is recorded: nothing may be heard of them any more.
    pub ended: HashSet<String>,
    /// Ids of deliveries in the order of their first calls, by hook.
    pub order: HashMap<String, Vec<String>>,
    /// Calls that should not have been.
    pub wrong: Vec<String>,
}

/// What is known of a delivery.
#[derive(Clone, Debug, Default)]
pub struct Delivered {
    /// Name of the hook.
    pub hook: String,
    /// Id of the event.
    pub event: String,
    pub calls: u32,
    pub accepted: u32,
}

/// How a handler answers.
#[derive(Clone, Copy)]
pub enum Temper {
    Good,
    /// Fails twice before it accepts one in eight deliveries.
    Moody,
    Bad,
}

/// Names under which the handlers are bound, by their temper.
pub const HANDLERS: [(&str, Temper); 3] =
    [("good", Temper::Good), ("moody", Temper::Moody), ("bad", Temper::Bad)];

impl Calls {
    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("nobody panics")
    }

    /// A handler that notes its calls.
    pub fn handler(&self, temper: Temper) -> Handler {
        let calls = self.clone();
        Arc::new(move |call: Call| {
            let answer = calls.known().answer(temper, &call);
            Box::pin(async move {
                tokio::task::yield_now().await;
                answer
            })
        })
    }
}

impl Known {
    fn answer(&mut self, temper: Temper, call: &Call) -> Result<String, String> {
        let Call { method, delivery, event, .. } = call;
        if self.ended.contains(delivery) {
            self.wrong.push(format!("{delivery} of {method} is over and was made again"));
        }
        if !self.deliveries.contains_key(delivery) {
            self.order.entry(method.clone()).or_default().push(delivery.clone());
        }
        let known = self.deliveries.entry(delivery.clone()).or_insert_with(|| Delivered {
            hook: method.clone(),
            event: event.clone(),
            ..Delivered::default()
        });
        if known.hook != *method || known.event != *event {
            self.wrong.push(format!("{delivery} was {known:?} and is {event} of {method}"));
        }
        known.calls += 1;
        let fails = match temper {
            Temper::Good => false,
            Temper::Moody => {
                known.calls <= 2 && delivery.bytes().map(usize::from).sum::<usize>().is_multiple_of(8)
            }
            Temper::Bad => true,
        };
        if fails {
            return Err("not today".to_owned());
        }
        known.accepted += 1;
        Ok("thanks".to_owned())
    }
}
