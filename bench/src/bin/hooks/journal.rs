//! What the journal costs an append that nobody hears.

use std::convert::Infallible;
use std::future::ready;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use tidings_bench::Failed;
use tidings_egress::{Egress, EgressOptions, Guard, SystemResolver};
use tidings_engine::journal::{Entry, Journals};
use tidings_engine::log::{Append, Commit, CommitError, Committed, Memory, StoreError};
use tidings_engine::{Bus, Metrics, Rng, WallClock};
use tidings_hooks::{Hooks, Options, Parts, Settings, Table};
use tidings_model::{LogId, ProjectId};

const COMMITS: u32 = 5_000_000;
/// Projects with hooks beside the one that is measured.
const PROJECTS: usize = 1_000;

/// Times commits with one append, made by the journals and made directly. The store below does nothing.
pub fn measure() -> Result<(), Failed> {
    let runtime = tokio::runtime::Runtime::new()?;
    let hooks = runtime.block_on(hooks());
    let journals = Journals::new(Arc::new(hooks));
    println!("\n## Appends that nobody hears\n\n| project | ns for each append, beside none |\n|---|---|");
    let cases = [("without hooks", "none"), ("with a hook, and streams switched off", "p0")];
    for (name, project) in cases {
        let project = ProjectId::parse(project).expect("a valid id");
        let none = time(&Journals::default(), &project);
        let with = time(&journals, &project);
        println!("| {name} | {:.0} |", with - none);
    }
    Ok(())
}

/// Nanoseconds of a commit with one append.
fn time(journals: &Journals, project: &ProjectId) -> f64 {
    let payload = Bytes::from_static(&[b'x'; 100]);
    let began = Instant::now();
    for _ in 0..COMMITS {
        let mut commit = Commit::<()>::new();
        commit.operations.push(Append::new(LogId::new(1), vec![payload.clone()]).into());
        let made = journals.commit(
            project,
            "stream",
            commit,
            0,
            |_| unheard(),
            |commit| {
                black_box(commit);
                ready(Err::<Committed, CommitError<Infallible>>(CommitError::Store(StoreError::NoSpace)))
            },
        );
        assert!(black_box(made.now_or_never()).is_some(), "nothing waits");
    }
    began.elapsed().as_nanos() as f64 / f64::from(COMMITS)
}

fn unheard() -> Entry<'static> {
    unreachable!("nobody hears streams")
}

/// Hooks of many projects, that hear no streams.
async fn hooks() -> Hooks {
    let clock = Arc::new(WallClock);
    let metrics = Metrics::new();
    let egress = Egress::new(
        EgressOptions::default(),
        Guard::default(),
        Arc::new(SystemResolver),
        clock.clone(),
        &metrics,
    );
    let hooks = Hooks::new(Parts {
        store: Arc::new(Memory::<Table>::new(Bus::new(), clock.clone())),
        bus: Bus::new(),
        clock,
        rng: Arc::new(Rng::seeded(1)),
        randomness: Arc::new(fastrand::fill),
        egress,
        sources: Arc::new(|_, source| source != "stream"),
        options: Options::default(),
        metrics,
    });
    for n in 0..PROJECTS {
        let project = ProjectId::parse(&format!("p{n}")).expect("a valid id");
        let settings = Settings { url: Some("https://example.com/in".into()), ..Settings::new("orders.*") };
        hooks.create(&project, settings).await.expect("a new hook");
    }
    hooks
}
