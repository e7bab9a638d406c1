//! Keyed bijections of `0 .. n` that need no memory.
//!
//! [`Permutation`] is a generalised Feistel network (J. Black and P. Rogaway, "Ciphers with Arbitrary Finite
//! Domains", 2002) with cycle walking. It is a statistical shuffle, not a cryptographic one.

/// Rounds of the network: the smallest even number whose statistics (tests, `docs/benchmarks.md`) cannot be
/// told from a uniform shuffle's, and two more.
const ROUNDS: usize = 8;

/// Positions that [`Permutation::apply_all`] takes at a time: enough for the processor to overlap their
/// chains of multiplications.
const LANES: usize = 8;

/// The lower half of a number.
const LOW: u64 = 0xffff_ffff;

/// The upper half of a product: for uniform `r`, a number in `0 .. n`.
#[inline(always)]
pub(super) fn high(r: u64, n: u64) -> u64 {
    ((u128::from(r) * u128::from(n)) >> 64) as u64
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(super) struct SplitMix64(pub u64);

impl SplitMix64 {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

/// SplitMix64's finaliser.
#[inline(always)]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A bijection of `0 .. n` chosen by a key.
///
/// Let `a` be the ceiling of the square root of n and `b` the ceiling of n / a, so that the grid a x b holds
/// every number x as (l, r) = (x mod a, x / a). Round i, key `k[i]` = the i-th output of SplitMix64 started
/// from the key, adds `hi(f(k[i], other), size)` to one half, modulo its size (a for l, b for r): even rounds
/// change l, odd rounds r, with `f(k, v) = m ^ (m >> 32)` for `m = (v ^ k) * 0x9e3779b97f4a7c15`, both halves
/// of `f` multiplied once more by 0xd6e8feb86659fd93 (wrapping) before `hi` takes the upper bits. The result
/// is l + a r; as long as it is n or more, all rounds are applied again.
#[derive(Debug, Clone)]
pub struct Permutation {
    n: u64,
    a: u64,
    b: u64,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The bijection of `0 .. n` under `key`.
    pub fn new(n: u64, key: u64) -> Self {
        let mut a = (n.max(1) as f64).sqrt() as u64;
        // The floating-point root may be off by one; these make it the exact ceiling.
        while a > 1 && u128::from(a - 1) * u128::from(a - 1) >= u128::from(n) {
            a -= 1;
        }
        while u128::from(a) * u128::from(a) < u128::from(n) {
            a += 1;
        }
        let a = a.max(1);
        let mut keys = SplitMix64(key);
        Self { n, a, b: n.div_ceil(a).max(1), keys: std::array::from_fn(|_| keys.next()) }
    }

    /// Where `x` goes. `x` must be less than n.
    #[inline]
    pub fn apply(&self, x: u64) -> u64 {
        let mut y = self.rounds(x);
        while y >= self.n {
            y = self.rounds(y);
        }
        y
    }

    /// Writes where `first`, `first + 1`, ... go. All of them must be less than n.
    pub fn apply_all(&self, first: u64, out: &mut [u64]) {
        let done = apply_wide(self, first, out);
        let done = done + self.apply_lanes::<LANES, false>(first + done as u64, &mut out[done..]);
        for (i, y) in out[done..].iter_mut().enumerate() {
            *y = self.apply(first + (done + i) as u64);
        }
    }

    /// [`apply_all`](Self::apply_all) for as many positions as fill all lanes; returns how many. `NARROW` is
    /// for sizes below 2^32, with multiplications that processors do for several lanes at once.
    #[inline(always)]
    fn apply_lanes<const L: usize, const NARROW: bool>(&self, first: u64, out: &mut [u64]) -> usize {
        let (a, b) = (self.a, self.b);
        let (mut l, mut r) = (first % a, first / a);
        let (lanes, _) = out.as_chunks_mut::<L>();
        let done = lanes.len() * L;
        for out in lanes {
            let (mut ls, mut rs) = ([0; L], [0; L]);
            if a >= L as u64 {
                for (i, (lane_l, lane_r)) in ls.iter_mut().zip(&mut rs).enumerate() {
                    let past = l + i as u64;
                    *lane_l = if past >= a { past - a } else { past };
                    *lane_r = r + u64::from(past >= a);
                }
                (l, r) = if l + L as u64 >= a { (l + L as u64 - a, r + 1) } else { (l + L as u64, r) };
            } else {
                for (lane_l, lane_r) in ls.iter_mut().zip(&mut rs) {
                    (*lane_l, *lane_r) = (l, r);
                    (l, r) = if l + 1 == a { (0, r + 1) } else { (l + 1, r) };
                }
            }
            for pair in self.keys.chunks_exact(2) {
                for (l, r) in ls.iter_mut().zip(&rs) {
                    *l = add(*l, step::<NARROW>(pair[0], *r, a), a);
                }
                for (r, l) in rs.iter_mut().zip(&ls) {
                    *r = add(*r, step::<NARROW>(pair[1], *l, b), b);
                }
            }
            for (y, (l, r)) in out.iter_mut().zip(ls.iter().zip(&rs)) {
                *y = l + a * r;
            }
            for y in out.iter_mut() {
                while *y >= self.n {
                    *y = self.rounds(*y);
                }
            }
        }
        done
    }

    #[inline(always)]
    fn rounds(&self, x: u64) -> u64 {
        let (mut l, mut r) = (x % self.a, x / self.a);
        for pair in self.keys.chunks_exact(2) {
            l = add(l, step::<false>(pair[0], r, self.a), self.a);
            r = add(r, step::<false>(pair[1], l, self.b), self.b);
        }
        l + self.a * r
    }
}

#[inline(always)]
fn step<const NARROW: bool>(key: u64, half: u64, size: u64) -> u64 {
    let m = (half ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let m = (m ^ (m >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    if NARROW { high_narrow(m, size) } else { high(m, size) }
}

/// [`high`] for `n` below 2^32, made of products of 32 bits.
#[inline(always)]
fn high_narrow(r: u64, n: u64) -> u64 {
    let n = n & LOW;
    ((r >> 32) * n + (((r & LOW) * n) >> 32)) >> 32
}

#[inline(always)]
fn add(x: u64, y: u64, size: u64) -> u64 {
    let s = x + y;
    if s >= size { s - size } else { s }
}

/// [`Permutation::apply_all`] with instructions that not every processor has, for as many positions as there
/// are such instructions for; returns how many.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "a function with these instructions may be called only where they are")]
fn apply_wide(permutation: &Permutation, first: u64, out: &mut [u64]) -> usize {
    if permutation.a > LOW {
        return 0;
    }
    if is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("avx512vl") {
        // SAFETY: the processor has them.
        return unsafe { apply_avx512(permutation, first, out) };
    }
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has them.
        return unsafe { apply_avx2(permutation, first, out) };
    }
    0
}

#[cfg(not(target_arch = "x86_64"))]
fn apply_wide(_: &Permutation, _: u64, _: &mut [u64]) -> usize {
    0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn apply_avx512(permutation: &Permutation, first: u64, out: &mut [u64]) -> usize {
    permutation.apply_lanes::<32, true>(first, out)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn apply_avx2(permutation: &Permutation, first: u64, out: &mut [u64]) -> usize {
    permutation.apply_lanes::<16, true>(first, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn many_positions_at_once_go_where_each_goes(
            n in prop_oneof![1u64..3000, 1u64..1 << 40],
            key: u64,
            at: prop::sample::Index,
            many in 1usize..300,
        ) {
            let permutation = Permutation::new(n, key);
            let first = at.index(n as usize) as u64;
            let many = many.min((n - first) as usize);
            let expected: Vec<u64> = (first..first + many as u64).map(|x| permutation.apply(x)).collect();
            let mut out = vec![u64::MAX; many];
            permutation.apply_all(first, &mut out);
            prop_assert_eq!(&out, &expected);
            // Each width by itself, whichever this processor would take.
            let widths = [
                Permutation::apply_lanes::<LANES, false>,
                Permutation::apply_lanes::<16, true>,
                Permutation::apply_lanes::<32, true>,
            ];
            for apply in widths {
                out.fill(u64::MAX);
                let done = apply(&permutation, first, &mut out);
                prop_assert!(done <= many && done + 32 > many);
                prop_assert_eq!(&out[..done], &expected[..done]);
            }
        }

        #[test]
        fn products_of_halves_are_products(r: u64, n in 0u64..1 << 32) {
            prop_assert_eq!(high_narrow(r, n), high(r, n));
        }
    }

    #[test]
    fn sizes_beyond_32_bits_take_the_plain_way() {
        let permutation = Permutation::new(u64::MAX, 3);
        let mut out = [0; 100];
        permutation.apply_all(u64::MAX - 100, &mut out);
        for (i, y) in out.into_iter().enumerate() {
            assert_eq!(y, permutation.apply(u64::MAX - 100 + i as u64));
        }
    }
}
