use tidings_engine::log::RowChange;
use tidings_model::{ProjectId, Ulid};

use super::*;
use crate::hook::{HookId, HookState, Settings};
use crate::signature::{Secret, Secrets};

const QUEUE: LogId = LogId::new(4);
const NOW: Timestamp = Timestamp::from_millis(1000);

fn at(position: u128) -> Position {
    Position::new(position)
}

fn hook() -> Arc<Hook> {
    Arc::new(Hook {
        id: HookId(Ulid::new(1)),
        project: ProjectId::default_project(),
        settings: Settings::new("**"),
        secrets: Secrets { current: Secret::from_bytes(&[1; 32]), previous: None },
        state: HookState::Active,
        id_mask: crate::IdMask::default(),
        created_at: NOW,
        updated_at: NOW,
    })
}

fn finished(position: u128, was_parked: bool, end: End) -> Finished {
    let outcome = AttemptOutcome::Failed("no".into());
    let attempt = Some(Attempt { number: 1, at: NOW, duration_ms: 1, outcome });
    Finished { position: at(position), was_parked, attempt, end }
}

fn parked(attempts: u32) -> End {
    End::Parked(table::Parked { attempts, due: NOW, delay_ms: 5 })
}

fn dead(position: u128, reason: DeathReason, is_notice: bool) -> End {
    let id = Ulid::new(position);
    let letter =
        Box::new(DeadLetter { id, position: at(position), reason, last_error: "no".into(), at: NOW });
    End::Dead { letter, is_notice }
}

fn part(results: Vec<Finished>, through: u128) -> Part {
    let mut window = Window::new(Position::ZERO, []);
    for position in 1..=through {
        window.push(at(position));
    }
    for result in &results {
        window.settle(result.position);
    }
    Part::new((QUEUE, 1), hook(), results, &mut window)
}

#[test]
fn what_came_last_of_a_delivery_is_what_is_stored() {
    let part = part(
        vec![
            finished(1, false, End::Delivered),
            finished(2, false, parked(1)),
            finished(2, true, End::Delivered),
            finished(4, false, parked(1)),
            finished(4, true, parked(2)),
            finished(5, false, dead(5, DeathReason::MaxRetriesExceeded, false)),
        ],
        6,
    );
    let Settled { done, above, parked, unparked, delivered, dead, attempts } = part.settled;
    assert_eq!((done, above), (at(2), vec![at(4), at(5)]));
    assert_eq!(
        parked.iter().map(|(position, parked)| (*position, parked.attempts)).collect::<Vec<_>>(),
        [(at(4), 2)]
    );
    assert_eq!(unparked, [at(2)]);
    assert_eq!((delivered, dead, attempts), (2, 1, 6));
}

#[test]
fn a_batch_tells_of_many_dead_deliveries_of_a_hook_once() {
    let gone = DeathReason::EndpointGone;
    let results = (1..=300).map(|n| finished(n, false, dead(n, DeathReason::Expired, n % 3 == 0)));
    let mut results: Vec<_> = results.collect();
    results.push(finished(301, false, dead(301, gone, false)));
    let mut batch = Batch { parts: vec![part(results, 301)], leave_out: LeaveOut::default() };
    let notices = batch.notices();
    let kinds: Vec<_> = notices.iter().map(|notice| notice.kind).collect();
    assert_eq!(kinds, ["endpoint.disabled", "delivery.dead"]);
    assert_eq!(
        (&notices[1].details["count"], &notices[1].details["reason"]),
        (&201.into(), &gone.as_str().into())
    );
    assert_eq!(batch.parts[0].gone(), Some(NOW));
    let puts = batch.commit().rows.iter().filter(|row| matches!(row, RowChange::Put { .. })).count();
    assert_eq!(puts, 903, "an attempt, that it was given up, and a dead letter each");
    batch.leave_out.rows = true;
    assert!(batch.commit().rows.is_empty() && batch.notices().is_empty());
}

#[test]
fn a_hook_that_only_failed_to_deliver_notices_raises_none() {
    let results = vec![finished(1, false, dead(1, DeathReason::EndpointGone, true))];
    let batch = Batch { parts: vec![part(results, 1)], leave_out: LeaveOut::default() };
    assert!(batch.notices().is_empty());
    assert_eq!(batch.parts[0].gone(), Some(NOW), "it is deactivated all the same");
}
