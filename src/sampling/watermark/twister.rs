//! MT19937 (Matsumoto and Nishimura 1998): torch makes SynthID's table with it on the CPU.

const SIZE: usize = 624;
const MIDDLE: usize = 397;

/// The generator.
#[derive(Debug, Clone)]
pub struct Twister {
    state: [u32; SIZE],
    next: usize,
}

impl Twister {
    /// Seeds the generator as `init_genrand` does.
    #[must_use]
    pub fn new(seed: u32) -> Self {
        let mut state = [seed; SIZE];
        for i in 1..SIZE {
            let before = state[i - 1];
            state[i] = (before ^ before >> 30).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Self { state, next: SIZE }
    }

    /// The next word.
    #[must_use]
    pub fn word(&mut self) -> u32 {
        if self.next == SIZE {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9D2C_5680;
        y ^= y << 15 & 0xEFC6_0000;
        y ^ y >> 18
    }

    fn twist(&mut self) {
        for i in 0..SIZE {
            let y = self.state[i] & 0x8000_0000 | self.state[(i + 1) % SIZE] & 0x7FFF_FFFF;
            let odd = if y & 1 == 1 { 0x9908_B0DF } else { 0 };
            self.state[i] = self.state[(i + MIDDLE) % SIZE] ^ y >> 1 ^ odd;
        }
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first and the ten-thousandth word of the reference program's seed; and what `torch.manual_seed(0)`,
    /// `torch.randint(0, 10, (10,))` gives, which is these words modulo 10.
    #[test]
    fn published_known_answers() {
        let mut words = Twister::new(5489);
        assert_eq!(words.word(), 3_499_211_612);
        assert_eq!((0..9999).map(|_| words.word()).last(), Some(4_123_659_995));
        let mut words = Twister::new(0);
        let digits: Vec<u32> = (0..10).map(|_| words.word() % 10).collect();
        assert_eq!(digits, [4, 9, 3, 0, 3, 9, 7, 3, 7, 3]);
    }
}
