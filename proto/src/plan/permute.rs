//! Keyed bijections of `0 .. n` that need no memory.
//!
//! [`Permutation`] is a generalised Feistel network (J. Black and P. Rogaway, "Ciphers with Arbitrary Finite
//! Domains", 2002) with cycle walking. It is a statistical shuffle, not a cryptographic one.

/// Rounds of the network: the smallest even number whose statistics (tests, `docs/benchmarks.md`) cannot be
/// told from a uniform shuffle's, and two more.
const ROUNDS: usize = 8;

/// Positions that [`Permutation::apply_all`] takes at a time.
const LANES: usize = 8;

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

    /// Writes where `first`, `first + 1`, ... go. All of them must be less than n. Several at a time, so that
    /// the processor overlaps their chains of multiplications.
    pub fn apply_all(&self, first: u64, out: &mut [u64]) {
        let (mut l, mut r) = (first % self.a, first / self.a);
        let (lanes, rest) = out.as_chunks_mut::<LANES>();
        let done = (lanes.len() * LANES) as u64;
        for out in lanes {
            let (mut ls, mut rs) = ([0; LANES], [0; LANES]);
            for (lane_l, lane_r) in ls.iter_mut().zip(&mut rs) {
                (*lane_l, *lane_r) = (l, r);
                l += 1;
                (l, r) = if l == self.a { (0, r + 1) } else { (l, r) };
            }
            for pair in self.keys.chunks_exact(2) {
                for (l, r) in ls.iter_mut().zip(&rs) {
                    *l = add(*l, step(pair[0], *r, self.a), self.a);
                }
                for (r, l) in rs.iter_mut().zip(&ls) {
                    *r = add(*r, step(pair[1], *l, self.b), self.b);
                }
            }
            for (y, (l, r)) in out.iter_mut().zip(ls.iter().zip(&rs)) {
                *y = l + self.a * r;
                while *y >= self.n {
                    *y = self.rounds(*y);
                }
            }
        }
        for (i, y) in rest.iter_mut().enumerate() {
            *y = self.apply(first + done + i as u64);
        }
    }

    #[inline(always)]
    fn rounds(&self, x: u64) -> u64 {
        let (mut l, mut r) = (x % self.a, x / self.a);
        for pair in self.keys.chunks_exact(2) {
            l = add(l, step(pair[0], r, self.a), self.a);
            r = add(r, step(pair[1], l, self.b), self.b);
        }
        l + self.a * r
    }
}

#[inline(always)]
fn step(key: u64, half: u64, size: u64) -> u64 {
    let m = (half ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    high((m ^ (m >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93), size)
}

#[inline(always)]
fn add(x: u64, y: u64, size: u64) -> u64 {
    let s = x + y;
    if s >= size { s - size } else { s }
}
