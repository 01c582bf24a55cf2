//! Scopes and ranks: one program text on several devices, with the same tags.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use testkit::devices::{alone, devices};
use testkit::gate::Gate;
use thalweg::{
    At, Device, DeviceBuffer, DeviceRank, Error, Event, On, Result, Stream, StreamOptions, for_each_device, stream_tags,
};

stream_tags!(Upload, Compute);

/// Every device of this machine and a second CPU device; each of them twice.
fn several() -> Vec<Device> {
    let mut all = devices().to_vec();
    all.push(Device::new_cpu().unwrap());
    all.extend(all.clone());
    all
}

fn filled<'r>(s: Stream<At<'r, Upload>>, v: u32) -> On<At<'r, Upload>, DeviceBuffer<u32>> {
    let mut x = s.alloc(100).unwrap();
    s.fill(&mut x, v).unwrap();
    x
}

fn program(rank: DeviceRank<'_>) -> Result<Vec<u32>> {
    let (up, compute) = (rank.stream::<Upload>()?, rank.stream::<Compute>()?);
    let x = up.hand_off(filled(up, rank.index() as u32), &compute)?;
    compute.read_blocking(&x)
}

#[test]
fn one_program_text_runs_on_every_device() {
    let _alone = alone();
    // The tags also have streams outside of all scopes, of one device.
    let outside = devices()[0].stream::<Upload>().unwrap();
    let all = several();
    let results = for_each_device(&all, program);
    assert_eq!(results.len(), all.len());
    for (rank, result) in results.into_iter().enumerate() {
        assert_eq!(result.unwrap(), [rank as u32; 100], "{}", all[rank]);
    }
    for device in several() {
        device.scope(|rank| {
            assert_eq!((rank.device(), rank.index(), rank.size()), (device, 0, 1));
            assert_eq!(program(rank).unwrap(), [0; 100]);
            assert_ne!(rank.stream::<Upload>().unwrap().unique_id(), outside.unique_id());
        });
    }
}

/// A place where all ranks meet. If one does not come within 20 seconds, the others panic.
struct Meeting {
    arrived: Mutex<usize>,
    changed: Condvar,
    size: usize,
}

impl Meeting {
    fn new(size: usize) -> Self {
        Self { arrived: Mutex::new(0), changed: Condvar::new(), size }
    }

    fn wait(&self) {
        let mut arrived = self.arrived.lock().unwrap();
        *arrived += 1;
        let all = arrived.next_multiple_of(self.size);
        self.changed.notify_all();
        let (_arrived, late) =
            self.changed.wait_timeout_while(arrived, Duration::from_secs(20), |arrived| *arrived < all).unwrap();
        assert!(!late.timed_out(), "the ranks run in turn");
    }
}

/// Each rank waits for all others. A stream of one rank stands at a gate meanwhile, which delays no
/// other rank.
#[test]
fn ranks_run_at_once_and_their_streams_are_their_own() {
    let _alone = alone();
    let all = several();
    let meeting = Meeting::new(all.len());
    let serials = for_each_device(&all, |rank| {
        let gate = (rank.index() == 0).then(|| Gate::closed(rank.device()));
        let (up, compute) = (rank.stream::<Upload>().unwrap(), rank.stream::<Compute>().unwrap());
        drop(program(rank).unwrap()); // loads and allocates what may wait for the device
        meeting.wait();
        if let Some(gate) = &gate {
            gate.hold(&up);
        }
        meeting.wait();
        if rank.device() != all[0] {
            assert_eq!(program(rank).unwrap(), [rank.index() as u32; 100]);
        }
        assert!(rank.index() > 0 || !up.is_complete().unwrap());
        meeting.wait();
        drop(gate);
        up.synchronize().unwrap();
        // Equal tags are one stream, in this thread and in others of the rank.
        let again =
            thread::scope(|threads| threads.spawn(|| rank.stream::<Upload>().unwrap().unique_id()).join().unwrap());
        assert_eq!(again, up.unique_id());
        [up.unique_id(), compute.unique_id()]
    });
    let distinct: HashSet<u64> = serials.iter().flatten().copied().collect();
    assert_eq!(distinct.len(), 2 * all.len());
}

#[test]
fn streams_come_back_when_a_scope_ends() {
    let device = Device::new_cpu().unwrap();
    let scope = |fails: bool| {
        let run = || {
            device.scope(|rank| {
                let serials =
                    [rank.stream::<Upload>().unwrap().unique_id(), rank.stream::<Compute>().unwrap().unique_id()];
                assert!(!fails, "on purpose");
                serials
            })
        };
        catch_unwind(AssertUnwindSafe(run)).ok()
    };
    let seen: HashSet<u64> = (0..40).filter_map(|i| scope(i % 3 == 0)).flatten().collect();
    assert_eq!(seen.len(), 2, "two streams serve all scopes");
}

#[test]
fn what_leaves_a_scope_is_checked_where_it_arrives() {
    let (here, there) = (Device::new_cpu().unwrap(), Device::new_cpu().unwrap());
    let event: Event<DeviceBuffer<u32>> = here.scope(|rank| {
        let up = rank.stream::<Upload>().unwrap();
        up.record(filled(up, 5)).unwrap()
    });
    let event = there.scope(|rank| {
        let refused = rank.stream::<Upload>().unwrap().wait(event).unwrap_err();
        assert!(matches!(refused.error, Error::DeviceMismatch { .. }), "{refused}");
        refused.value
    });
    here.scope(|rank| {
        let compute = rank.stream::<Compute>().unwrap();
        assert_eq!(compute.read_blocking(&compute.wait(event).unwrap()).unwrap(), [5; 100]);
    });
}

#[test]
fn a_tag_has_one_priority_in_a_scope() {
    let device = Device::new_cpu().unwrap();
    device.scope(|rank| {
        let urgent = StreamOptions::default().with_priority(-1);
        assert_eq!(rank.stream_with::<Upload>(urgent).unwrap().priority(), -1);
        assert!(matches!(rank.stream::<Upload>(), Err(Error::TagBound { priority: -1, .. })));
        assert!(matches!(
            rank.stream_with::<Compute>(StreamOptions::default().with_priority(9)),
            Err(Error::Parameter { .. })
        ));
    });
}

#[test]
fn a_panic_of_a_rank_is_passed_on_after_all_have_ended() {
    let ended = std::sync::atomic::AtomicUsize::new(0);
    let devices = [Device::cpu().unwrap(); 3];
    let run = || {
        for_each_device(&devices, |rank| {
            assert!(rank.index() != 1, "on purpose");
            thread::sleep(Duration::from_millis(20));
            ended.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        })
    };
    let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    assert_eq!(ended.into_inner(), 2);
    assert!(for_each_device(&[], |_| ()).is_empty());
}
