use super::super::schema::Role;
use super::*;

/// As if there was a GPU, which nothing is computed on.
pub(crate) fn fake_gpu() -> Compute {
    Compute { device: Device::Cuda(0), ..Compute::CPU }
}

#[test]
fn the_cpu_takes_batches_as_they_are() {
    let compute = Compute::CPU;
    let labels = Tensor::from_slice(&[1i64, 2]);
    let input = Input::new(2, vec![(Role::Label, labels.shallow_clone())], None);
    let sent = compute.send(compute.stage(input).unwrap()).unwrap();
    let (taken, stall) = compute.receive(sent).unwrap();
    assert_eq!(taken.get(Role::Label).unwrap().data_ptr(), labels.data_ptr());
    assert_eq!((compute.device(), compute.copies(), stall.is_none()), (Device::Cpu, false, true));
}
