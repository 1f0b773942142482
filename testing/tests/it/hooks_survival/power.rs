//! Hooks and their deliveries hold when the power goes at any moment.
//!
//! On a simulated disk, some create hooks, change, pause and remove them, publish events, replay them and retry dead
//! letters, while deliveries are made to handlers, of which one fails now and then and one always. The power is cut at a
//! random operation of the disk. On what is left everything that was acknowledged must be there; when it goes on, every
//! accepted event must be in the queues of the hooks that heard it, and in the end be delivered or dead. A delivery has one
//! id for ever, and once its end is known to be recorded it is not made again.

mod calls;
mod person;
mod world;

use std::ops::AddAssign;

use tidings_embedded::simulation::SimulatedDisk;
use tidings_engine::ManualClock;
use tidings_model::Timestamp;

use self::calls::Calls;
use self::person::Person;
use self::world::World;

/// Power cuts in every run of the tests; `make test-all` sets more.
const CUTS: u64 = 80;
const CUTS_PER_STORE: u64 = 4;
const PEOPLE: u64 = 3;

fn cuts() -> u64 {
    std::env::var("TIDINGS_POWER_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(CUTS)
}

/// What happened, to see that the play is one.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    events: u64,
    changed: u64,
    removed: u64,
    paused: u64,
    replayed: u64,
    retried: u64,
    delivered: u64,
    failed: u64,
    dead: u64,
}

impl Tally {
    fn all(&self) -> [u64; 9] {
        let &Self { events, changed, removed, paused, replayed, retried, delivered, failed, dead } = self;
        [events, changed, removed, paused, replayed, retried, delivered, failed, dead]
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.changed += other.changed;
        self.removed += other.removed;
        self.paused += other.paused;
        self.replayed += other.replayed;
        self.retried += other.retried;
        self.delivered += other.delivered;
        self.failed += other.failed;
        self.dead += other.dead;
    }
}

/// One store and its power cuts.
async fn life(seed: u64) -> Tally {
    let mut rng = fastrand::Rng::with_seed(seed);
    let clock = ManualClock::at(Timestamp::from_millis(1_763_294_400_000));
    let mut disk = SimulatedDisk::new();
    let calls = Calls::default();
    let mut people: Vec<_> = (0..PEOPLE).map(|number| Person::new(seed, number)).collect();
    let mut seen = Tally::default();
    for cut in 0..CUTS_PER_STORE {
        let what = format!("seed {seed}, cut {cut}");
        disk.cut_power_at(rng.u64(1..700));
        match World::open(&disk, seed, &clock, &calls) {
            Ok(world) => people = work_until_cut(world, people).await,
            Err(tidings_embedded::OpenError::Io { .. }) => {}
            Err(error) => panic!("{what}: {error}"),
        }
        disk = if rng.u8(..4) == 0 { disk.after_kill() } else { disk.after_power_cut(&mut rng) };
        let world =
            World::open(&disk, seed, &clock, &calls).unwrap_or_else(|error| panic!("{what}: {error}"));
        for person in &mut people {
            person.find(&world, &what).await;
        }
        let duties = world.duties();
        world.rest(&what).await;
        seen += world.check(&what).await;
        for person in &mut people {
            person.compare(&world, &what).await;
        }
        duties.end().await;
        // Tasks that were cancelled may hold the store for a moment longer. It writes to a disk that nobody looks at again.
        disk = disk.after_kill();
    }
    people.iter().for_each(|person| seen += person.seen);
    seen
}

async fn work_until_cut(world: World, people: Vec<Person>) -> Vec<Person> {
    let duties = world.duties();
    let work = |person: Person| tokio::spawn(person.work(world.clone()));
    let tasks: Vec<_> = people.into_iter().map(work).collect();
    let mut people = Vec::new();
    for task in tasks {
        people.push(task.await.expect("nothing was wrong"));
    }
    duties.end().await;
    people
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hooks_events_and_deliveries_hold_and_no_id_changes_when_the_power_goes() {
    let mut seen = Tally::default();
    for seed in 0..cuts() / CUTS_PER_STORE {
        seen += life(seed).await;
    }
    assert!(seen.all().iter().all(|&times| times > 0), "{seen:?}");
}
