//! One process, one GPU.

use forebay_c10d::{Cuda, Event, Profiler, ProfilerSettings, Result, Span, Stream, autocast, pinned};
use tch::{Device, Kind, Tensor};

use crate::Outcome;

const GPU: Device = Device::Cuda(0);

/// tch knows the GPU since the plugin was loaded, and computes on it.
pub fn matmul(cuda: Cuda) -> Result<Outcome> {
    if !tch::Cuda::is_available() {
        return Ok(Outcome::Fail("the plugin is loaded, but tch sees no CUDA".into()));
    }
    tch::manual_seed(1);
    let a = Tensor::randn([256, 256], (Kind::Double, Device::Cpu));
    let there = a.to_device(GPU);
    let back = there.matmul(&there).to_device(Device::Cpu);
    let difference = (back - a.matmul(&a)).abs().max().double_value(&[]);
    Ok(Outcome::of(difference < 1e-9, format!("{} GPUs, worst difference {difference:e}", cuda.devices())))
}

/// Autocast: products in bf16, gradients in the parameters' fp32.
pub fn bf16(_: Cuda) -> Result<Outcome> {
    tch::manual_seed(2);
    let weight = Tensor::randn([512, 512], (Kind::Float, GPU)).set_requires_grad(true);
    let x = Tensor::randn([64, 512], (Kind::Float, GPU));
    let mut product = Kind::Float;
    let loss = autocast(GPU, Kind::BFloat16, || {
        let y = x.matmul(&weight);
        product = y.kind();
        y.to_kind(Kind::Float).square().mean(Kind::Float)
    })?;
    loss.backward();
    let exact = x.matmul(&weight).square().mean(Kind::Float).double_value(&[]);
    let off = (loss.double_value(&[]) - exact).abs() / exact;
    let kinds = (product, weight.grad().kind());
    let right = kinds == (Kind::BFloat16, Kind::Float) && off < 1e-2;
    Ok(Outcome::of(right, format!("product {:?}, gradient {:?}, loss off by {off:.1e}", kinds.0, kinds.1)))
}

/// A copy from pinned memory on a stream of its own is through while the default stream still computes.
pub fn pinned_copies_overlap(_: Cuda) -> Result<Outcome> {
    let rows = 16 << 20;
    let here = pinned(&Tensor::arange(rows, (Kind::Float, Device::Cpu)))?;
    if !here.f_is_pinned(GPU).unwrap_or(false) {
        return Ok(Outcome::Fail("the memory is not pinned".into()));
    }
    let a = Tensor::randn([4096, 4096], (Kind::Float, GPU));
    let mut product = a.matmul(&a);
    let (computing, copying) = (Stream::current(GPU)?, Stream::from_pool(GPU, false)?);
    let mut marks = (0..3).map(|_| Event::new(GPU, true)).collect::<Result<Vec<_>>>()?;
    computing.synchronize()?;

    marks[0].record(&computing)?;
    for _ in 0..60 {
        product = (&a + &product * 0.0).matmul(&a);
    }
    let there = copying.run(|| here.to_device_(GPU, Kind::Float, true, false))?;
    marks[1].record(&copying)?;
    marks[2].record(&computing)?;
    // Whatever uses the copy waits for it on the device, not here.
    marks[1].block(&computing)?;
    computing.keep(&there)?;
    let sum = there.narrow(0, rows - 4, 4).to_kind(Kind::Double).sum(Kind::Double);
    marks[2].synchronize()?;
    let (copied, computed) = (marks[0].elapsed_ms(&marks[1])?, marks[0].elapsed_ms(&marks[2])?);
    let right = sum.double_value(&[]) == (4 * (rows - 4) + 6) as f64 && product.size() == [4096, 4096];
    let seen = format!("64 MiB copied {copied:.1} ms after the start, computed until {computed:.1} ms");
    Ok(Outcome::of(right && copied < computed, seen))
}

/// The profiler's trace has the GPU's kernels beside our spans.
pub fn trace(_: Cuda) -> Result<Outcome> {
    let file = std::env::temp_dir().join(format!("forebay-gpu-trace-{}.json", std::process::id()));
    let profiler = Profiler::start(ProfilerSettings { cuda: true, ..Default::default() })?;
    {
        let _span = Span::new("checked step")?;
        let a = Tensor::randn([1024, 1024], (Kind::Float, GPU));
        let _product = a.matmul(&a);
        Stream::current(GPU)?.synchronize()?;
    }
    profiler.stop(&file)?;
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    let missing: Vec<_> = ["checked step", "aten::matmul", "\"kernel\""]
        .into_iter()
        .filter(|name| !text.contains(name))
        .collect();
    Ok(Outcome::of(missing.is_empty(), format!("{} bytes, missing: {missing:?}", text.len())))
}
