use std::collections::HashSet;

use proptest::prelude::*;

use super::super::breaker::BreakerOptions;
use super::super::outcome::FailureKind;
use super::*;

const NOW: Duration = Duration::from_secs(100);

fn destinations(all: usize, each: usize) -> Destinations {
    let breaker = BreakerOptions { failures: 1000, open: Duration::from_secs(30) };
    Destinations::new(AttemptLimits { all, each, breaker })
}

fn queue(number: u64) -> LogId {
    LogId::new(number)
}

fn accepted() -> Outcome {
    Outcome::Accepted(String::new())
}

/// Destinations that answer, each with one hook. Returns their numbers.
fn proven(destinations: &mut Destinations, count: u64) -> Vec<DestinationId> {
    let ids: Vec<_> = (0..count).map(|number| destinations.join(Place::Nowhere(queue(number)))).collect();
    for id in &ids {
        for _ in 0..20 {
            destinations.begin(*id, NOW);
            destinations.end(*id, &accepted(), false, NOW);
        }
    }
    ids
}

#[test]
fn destinations_take_turns_of_a_few_attempts() {
    let mut destinations = destinations(1000, 20);
    let ids = proven(&mut destinations, 2);
    let mut begun = Vec::new();
    for id in &ids {
        destinations.enter(*id, queue(1), false);
    }
    while let Some(Turn::Hook(id, queue)) = destinations.turn(NOW) {
        destinations.begin(id, NOW);
        destinations.enter(id, queue, false);
        begun.push(id);
    }
    for id in &ids {
        assert_eq!(begun.iter().filter(|other| *other == id).count(), 20);
    }
    let quantum = QUANTUM as usize;
    assert!(begun[..quantum].iter().all(|id| *id == ids[0]));
    assert!(begun[quantum..2 * quantum].iter().all(|id| *id == ids[1]));
}

#[test]
fn with_many_destinations_a_turn_is_one_attempt() {
    let mut destinations = destinations(1000, 20);
    let ids = proven(&mut destinations, 600);
    for (number, id) in (0..).zip(&ids) {
        destinations.enter(*id, queue(number), false);
    }
    let mut begun = Vec::new();
    while begun.len() < 600
        && let Some(Turn::Hook(id, queue)) = destinations.turn(NOW)
    {
        destinations.begin(id, NOW);
        destinations.enter(id, queue, false);
        begun.push(id);
    }
    // The first turn was given when nobody else was there.
    let first = begun.iter().take_while(|id| **id == ids[0]).count();
    assert!(first <= QUANTUM as usize);
    assert!(begun[first..].iter().eq(&ids[1..=600 - first]));
}

#[test]
fn hooks_of_a_destination_take_turns() {
    let mut destinations = destinations(1000, 100);
    let id = proven(&mut destinations, 1)[0];
    destinations.enter(id, queue(1), false);
    destinations.enter(id, queue(2), false);
    destinations.enter(id, queue(3), true);
    let mut turns = Vec::new();
    for _ in 0..6 {
        let Some(Turn::Hook(id, queue)) = destinations.turn(NOW) else { panic!() };
        destinations.begin(id, NOW);
        destinations.enter(id, queue, false);
        turns.push(queue.get());
    }
    assert_eq!(turns, [3, 1, 2, 3, 1, 2]);
}

#[test]
fn a_destination_without_hooks_is_forgotten_unless_it_fails() {
    let mut destinations = destinations(1000, 100);
    let ids = proven(&mut destinations, 2);
    destinations.begin(ids[1], NOW);
    destinations.end(ids[1], &Outcome::failed(FailureKind::Refused, "no"), false, NOW);
    ids.iter().for_each(|id| destinations.leave(*id));
    assert_eq!(destinations.members.len(), 1);
    assert_eq!(destinations.join(Place::Nowhere(queue(1))), ids[1]);
    for number in 0..2 * REMEMBERED as u64 {
        let id = destinations.join(Place::Handler(number.to_string()));
        destinations.begin(id, NOW);
        destinations.end(id, &Outcome::failed(FailureKind::Refused, "no"), false, NOW);
        destinations.leave(id);
    }
    assert!(destinations.members.len() <= REMEMBERED + 1, "{}", destinations.members.len());
    assert_eq!(destinations.members.len(), destinations.places.len());
}

proptest! {
    /// Whatever order attempts end in, every hook that is ready gets its turns as long as attempts end.
    #[test]
    fn nobody_waits_forever(
        all in 1usize..40, each in 1usize..10, hooks in 1u64..30, silent in 0u64..30,
        ends in prop::collection::vec(any::<prop::sample::Index>(), 3000),
    ) {
        let mut destinations = destinations(all, each);
        let ids: Vec<_> = (0..hooks).map(|n| destinations.join(Place::Nowhere(queue(n % (hooks / 2 + 1))))).collect();
        for (n, id) in (0..).zip(&ids) {
            destinations.enter(*id, queue(n), false);
        }
        let mut left: HashMap<u64, u32> = (0..hooks).map(|n| (n, 5)).collect();
        let mut running: Vec<(DestinationId, u64)> = Vec::new();
        let mut ends = ends.into_iter();
        loop {
            while let Some(turn) = destinations.turn(NOW) {
                let Turn::Hook(id, queue) = turn else { panic!("{turn:?}") };
                prop_assert_eq!(id, ids[queue.get() as usize]);
                destinations.begin(id, NOW);
                running.push((id, queue.get()));
                let left = left.get_mut(&queue.get()).expect("a hook");
                *left -= 1;
                if *left > 0 {
                    destinations.enter(id, queue, false);
                }
            }
            prop_assert!(running.len() <= all);
            let Some(end) = ends.next().filter(|_| !running.is_empty()) else { break };
            let (id, number) = running.swap_remove(end.index(running.len()));
            let silence = Outcome::failed(FailureKind::Unreachable, "timeout");
            let outcome = if number < silent { silence } else { accepted() };
            destinations.end(id, &outcome, false, NOW);
        }
        let waiting: HashSet<_> = left.iter().filter(|(_, left)| **left > 0).collect();
        prop_assert!(waiting.is_empty(), "{waiting:?}");
    }
}
