// Montgomery multiplication of numbers of N = M T limbs of 32 bits, least significant first: T lanes hold M limbs each.
// The modulus is n, and R = 2^(32 N).
//
// The method is CIOS (Koc, Acar, Kaliski 1996) with two sums, one of the products at even limbs and one of the products
// at odd limbs, so that the 64-bit products of a sum do not overlap and each is one instruction with carry. After each
// digit the two sums exchange roles instead of being shifted: limb i + 1 of one is limb i of the other.
//
// Numbers are "almost reduced" (Gueron, "Efficient software implementations of modular exponentiation", 2012): below R
// = 2^(32 N), not always below n. With R/2 < n < R and factors below R, the sum (a b + q n) / R is below R + n; n is
// subtracted if and only if the sum reaches R, which is one masked subtraction without a comparison. `canonical`
// reduces such a number below n. Nothing here branches on a number or derives an address from it.
#pragma once
#include "carry.cuh"
#include "group.cuh"

// The sums of one lane between two digits. Limb i of `even` has weight i; limb i of `odd` weight i - 1, limb 0 being
// used up; `above` came from the next lane with weight M - 1, `top` has weight M. The total is below 4 * 2^(32 M), so
// that `top` is at most 3: a digit adds (2^(32 M) - 1) (2^32 - 1) twice and a limb of weight M to the previous total,
// and the result stays below 2^(32 (M + 1) + 1).
template <int M>
struct LaneSums {
    u32 even[M], odd[M];
    u32 above, top;
};

// Adds a times digit to the sums and moves them to their next positions, except for exchanging even and odd.
template <int M>
LW_FN void add_digit(u32 (&even)[M], u32 (&odd)[M], u32 above, u32& top, const u32 (&a)[M], u32 digit) {
    Carry k;
    even[0] = add_cc(even[0], odd[1], k);
#pragma unroll
    for (int i = 0; i < M - 2; i += 2) {
        odd[i] = madc_lo_cc(a[i + 1], digit, odd[i + 2], k);
        odd[i + 1] = madc_hi_cc(a[i + 1], digit, odd[i + 3], k);
    }
    odd[M - 2] = madc_lo_cc(a[M - 1], digit, above, k);
    odd[M - 1] = madc_hi_cc(a[M - 1], digit, top, k);
    top = addc(0, 0, k);
    even[0] = mad_lo_cc(a[0], digit, even[0], k);
    even[1] = madc_hi_cc(a[0], digit, even[1], k);
#pragma unroll
    for (int i = 2; i < M; i += 2) {
        even[i] = madc_lo_cc(a[i], digit, even[i], k);
        even[i + 1] = madc_hi_cc(a[i], digit, even[i + 1], k);
    }
    odd[M - 1] = addc_cc(odd[M - 1], 0, k);
    top = addc(top, 0, k);
}

// Adds n times q; in the lowest lane limb 0 of even becomes 0.
template <int M>
LW_FN void add_quotient(u32 (&even)[M], u32 (&odd)[M], u32& top, const u32 (&n)[M], u32 q) {
    Carry k;
    odd[0] = mad_lo_cc(n[1], q, odd[0], k);
    odd[1] = madc_hi_cc(n[1], q, odd[1], k);
#pragma unroll
    for (int i = 2; i < M; i += 2) {
        odd[i] = madc_lo_cc(n[i + 1], q, odd[i], k);
        odd[i + 1] = madc_hi_cc(n[i + 1], q, odd[i + 1], k);
    }
    top = addc(top, 0, k);
    even[0] = mad_lo_cc(n[0], q, even[0], k);
    even[1] = madc_hi_cc(n[0], q, even[1], k);
#pragma unroll
    for (int i = 2; i < M; i += 2) {
        even[i] = madc_lo_cc(n[i], q, even[i], k);
        even[i + 1] = madc_hi_cc(n[i], q, even[i + 1], k);
    }
    odd[M - 1] = addc_cc(odd[M - 1], 0, k);
    top = addc(top, 0, k);
}

template <int M, int T>
struct Mont {
    static_assert(M % 4 == 0, "a lane's limbs are whole quads");
    static const int N = M * T;
    static const int HELD = Group<T>::HELD;
    // Digits per pass of the loop of `multiply`. From one pass to the next ptxas moves many of the sums to other
    // registers, with 60 to 100 instructions for M = 32. With sixteen digits per pass, these are 8 % of the
    // instructions, and the code of the loop has 20 KiB. Fewer digits compile faster.
    static const int MANY_DIGITS = M >= 24 ? 16 : 8;
    static const int FEW_DIGITS = 4;

    struct Number {
        u32 limb[HELD][M];
    };

    Group<T> group;
    Number n;
    // -n^-1 modulo 2^32, read from memory: a literal makes ptxas choose slower instructions.
    u32 n0;

    LW_FN Mont(const u32* modulus, u32 n0) : n0(n0) { load(n, modulus); }

    // Sets a number to the value of one word.
    LW_FN void set_word(Number& out, u32 word) const {
#pragma unroll
        for (int h = 0; h < HELD; h++) {
#pragma unroll
            for (int i = 0; i < M; i++) out.limb[h][i] = i == 0 && group.lane(h) == 0 ? word : 0;
        }
    }

    // 1 in Montgomery form: R - n, since n is above R/2.
    LW_FN void one(Number& out) const {
        set_word(out, 0);
        subtract(out, out, n);
    }

    // Loads N limbs, least significant first, aligned to quads.
    LW_FN void load(Number& out, const u32* from) const {
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const Quad* quads = (const Quad*)from + group.lane(h) * (M / 4);
#pragma unroll
            for (int i = 0; i < M / 4; i++) {
                Quad quad = quads[i];
#pragma unroll
                for (int j = 0; j < 4; j++) out.limb[h][4 * i + j] = quad.word[j];
            }
        }
    }

    // Loads N / 2 limbs into the lower half of a number.
    LW_FN void load_low_half(Number& out, const u32* from) const {
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const Quad* quads = (const Quad*)from + group.lane(h) * (M / 4);
#pragma unroll
            for (int i = 0; i < M / 4; i++) {
                if (group.lane(h) >= T / 2) continue;
                Quad quad = quads[i];
#pragma unroll
                for (int j = 0; j < 4; j++) out.limb[h][4 * i + j] = quad.word[j];
            }
        }
    }

    LW_FN void store(u32* to, const Number& number) const {
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            Quad* quads = (Quad*)to + group.lane(h) * (M / 4);
#pragma unroll
            for (int i = 0; i < M / 4; i++) {
                Quad quad;
#pragma unroll
                for (int j = 0; j < 4; j++) quad.word[j] = number.limb[h][4 * i + j];
                quads[i] = quad;
            }
        }
    }

    // Loads 4 N bytes, most significant first, aligned to quads.
    LW_FN void load_bytes(Number& out, const u8* from) const {
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const Quad* quads = (const Quad*)from + (T - 1 - group.lane(h)) * (M / 4);
#pragma unroll
            for (int i = 0; i < M / 4; i++) {
                Quad quad = quads[i];
#pragma unroll
                for (int j = 0; j < 4; j++) out.limb[h][M - 1 - 4 * i - j] = swap_bytes(quad.word[j]);
            }
        }
    }

    LW_FN void store_bytes(u8* to, const Number& number) const {
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            Quad* quads = (Quad*)to + (T - 1 - group.lane(h)) * (M / 4);
#pragma unroll
            for (int i = 0; i < M / 4; i++) {
                Quad quad;
#pragma unroll
                for (int j = 0; j < 4; j++) quad.word[j] = swap_bytes(number.limb[h][M - 1 - 4 * i - j]);
                quads[i] = quad;
            }
        }
    }

    // Writes a number where `multiply` reads its digits. No lane may still be reading the previous one.
    LW_FN void stage(const Stage<T>& to, const Number& number) const {
        group.sync();
#pragma unroll
        for (int h = 0; h < HELD; h++) {
#pragma unroll
            for (int i = 0; i < M; i++) to.set(group.lane(h) * M + i, number.limb[h][i]);
        }
        group.sync();
    }

    // Writes a number from memory, in the format of `load`, into the stage.
    LW_FN void stage_row(const Stage<T>& to, const u32* row) const {
        group.sync();
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const Quad* quads = (const Quad*)row + group.lane(h) * (M / 4);
#pragma unroll
            for (int i = 0; i < M / 4; i++) {
                Quad quad = quads[i];
#pragma unroll
                for (int j = 0; j < 4; j++) to.set(group.lane(h) * M + 4 * i + j, quad.word[j]);
            }
        }
        group.sync();
    }

    // Writes a number from bytes, in the format of `load_bytes`, into the stage.
    LW_FN void stage_bytes(const Stage<T>& to, const u8* from) const {
        Number number;
        load_bytes(number, from);
        stage(to, number);
    }

    LW_FN void unstage(Number& out, const Stage<T>& from) const {
#pragma unroll
        for (int h = 0; h < HELD; h++) {
#pragma unroll
            for (int i = 0; i < M; i++) out.limb[h][i] = from.get(group.lane(h) * M + i);
        }
    }

    // out = a b / 2^(32 count) modulo n, almost reduced, where the `count` digits of b begin at `first` of the stage,
    // with PASS digits in each pass of the loop. `out` may be `a`.
    template <int PASS = MANY_DIGITS>
    LW_FN void multiply(Number& out, const Number& a, const Stage<T>& b, int first = 0, int count = N) const {
        LaneSums<M> sums[HELD];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
#pragma unroll
            for (int i = 0; i < M; i++) sums[h].even[i] = sums[h].odd[i] = 0;
            sums[h].above = sums[h].top = 0;
        }
#pragma unroll 1
        for (int i = first; i < first + count; i += PASS) {
#pragma unroll
            for (int j = 0; j < PASS; j += 2) {
                row<false>(sums, a, b.get(i + j));
                row<true>(sums, a, b.get(i + j + 1));
            }
        }
        finish(out, sums);
    }

    // Processes one digit. With EXCHANGED, for the second of two digits, the sums have exchanged roles.
    template <bool EXCHANGED>
    LW_FN void row(LaneSums<M> (&sums)[HELD], const Number& a, u32 digit) const {
        u32 lowest[HELD];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            LaneSums<M>& s = sums[h];
            u32(&even)[M] = EXCHANGED ? s.odd : s.even;
            u32(&odd)[M] = EXCHANGED ? s.even : s.odd;
            add_digit(even, odd, s.above, s.top, a.limb[h], digit);
            lowest[h] = even[0] * n0;
        }
        u32 q = group.broadcast(lowest, 0);
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            LaneSums<M>& s = sums[h];
            u32(&even)[M] = EXCHANGED ? s.odd : s.even;
            u32(&odd)[M] = EXCHANGED ? s.even : s.odd;
            add_quotient(even, odd, s.top, n.limb[h], q);
            lowest[h] = even[0];
        }
        u32 above[HELD];
        group.send_down(above, lowest);
#pragma unroll
        for (int h = 0; h < HELD; h++) sums[h].above = above[h];
    }

    // Combines the sums of all lanes into one number below R.
    LW_FN void finish(Number& out, const LaneSums<M> (&sums)[HELD]) const {
        u32 top[HELD], carry[HELD];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const LaneSums<M>& s = sums[h];
            Carry k;
            out.limb[h][0] = add_cc(s.even[0], s.odd[1], k);
#pragma unroll
            for (int i = 1; i < M - 1; i++) out.limb[h][i] = addc_cc(s.even[i], s.odd[i + 1], k);
            out.limb[h][M - 1] = addc_cc(s.even[M - 1], s.above, k);
            top[h] = addc(s.top, 0, k);
        }
        group.send_up(carry, top);
        u32 over = group.broadcast(top, T - 1);
        if (T > 1) over += carry_up(out, carry);
        subtract(out, out, n, mask_of(over));
    }

    // Adds a word to the lowest limb of each lane and propagates carries through the lanes; returns the carry out of
    // the last lane.
    LW_FN u32 carry_up(Number& number, const u32 (&carry)[HELD]) const {
        u32 generates[HELD], passes[HELD];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            Carry k;
            u32 all = number.limb[h][0] = add_cc(number.limb[h][0], carry[h], k);
#pragma unroll
            for (int i = 1; i < M; i++) all &= number.limb[h][i] = addc_cc(number.limb[h][i], 0, k);
            generates[h] = addc(0, 0, k);
            passes[h] = all == 0xffffffffu;
        }
        if (T == 1) return generates[0];
        // A carry enters the lane above one that generates it, and passes through lanes that propagate it, like bits in
        // an adder.
        u32 pass = group.gather(passes);
        u32 entering = ((group.gather(generates) << 1) + pass) ^ pass;
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            Carry k;
            number.limb[h][0] = add_cc(number.limb[h][0], entering >> group.lane(h) & 1, k);
#pragma unroll
            for (int i = 1; i < M; i++) number.limb[h][i] = addc_cc(number.limb[h][i], 0, k);
        }
        return entering >> T & 1;
    }

    // out = a - (b and mask), with one mask for all limbs; returns the borrow out of the last lane. `out` may be `a`.
    LW_FN u32 subtract(Number& out, const Number& a, const Number& b, u32 mask = 0xffffffffu) const {
        u32 generates[HELD], passes[HELD];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            Carry k;
            u32 any = out.limb[h][0] = sub_cc(a.limb[h][0], b.limb[h][0] & mask, k);
#pragma unroll
            for (int i = 1; i < M; i++) any |= out.limb[h][i] = subc_cc(a.limb[h][i], b.limb[h][i] & mask, k);
            generates[h] = 0u - subc(0, 0, k);
            passes[h] = any == 0;
        }
        if (T == 1) return generates[0];
        u32 pass = group.gather(passes);
        u32 entering = ((group.gather(generates) << 1) + pass) ^ pass;
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            Carry k;
            out.limb[h][0] = sub_cc(out.limb[h][0], entering >> group.lane(h) & 1, k);
#pragma unroll
            for (int i = 1; i < M; i++) out.limb[h][i] = subc_cc(out.limb[h][i], 0, k);
        }
        return entering >> T & 1;
    }

    // out = a + (b and mask); returns the carry out of the last lane. `out` may be `a`.
    LW_FN u32 add(Number& out, const Number& a, const Number& b, u32 mask = 0xffffffffu) const {
        u32 carry[HELD], up[HELD];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            Carry k;
            out.limb[h][0] = add_cc(a.limb[h][0], b.limb[h][0] & mask, k);
#pragma unroll
            for (int i = 1; i < M; i++) out.limb[h][i] = addc_cc(a.limb[h][i], b.limb[h][i] & mask, k);
            carry[h] = addc(0, 0, k);
        }
        u32 over = group.broadcast(carry, T - 1);
        if (T == 1) return over;
        group.send_up(up, carry);
        return over + carry_up(out, up);
    }

    // out = a + b modulo n, almost reduced. a + b is below 2 R, and n is above R/2, so that subtracting n at most twice
    // suffices.
    LW_FN void add_mod(Number& out, const Number& a, const Number& b) const {
        u32 over = add(out, a, b);
        over -= subtract(out, out, n, mask_of(over));
        subtract(out, out, n, mask_of(over));
    }

    // out = a - b modulo n; below n if a is below n. a - b is above -R, and 2 n is above R, so that adding n at most
    // twice suffices.
    LW_FN void subtract_mod(Number& out, const Number& a, const Number& b) const {
        u32 under = subtract(out, a, b);
        under -= add(out, out, n, mask_of(under));
        add(out, out, n, mask_of(under));
    }

    // Reduces a number below n: an almost reduced number is below 2 n.
    LW_FN void canonical(Number& number) const {
        Number reduced;
        u32 below = subtract(reduced, number, n);
#pragma unroll
        for (int h = 0; h < HELD; h++) {
#pragma unroll
            for (int i = 0; i < M; i++) {
                u32 keep = mask_of(below);
                number.limb[h][i] = (number.limb[h][i] & keep) | (reduced.limb[h][i] & ~keep);
            }
        }
    }

    // Returns 1 if the number is below n, otherwise 0.
    LW_FN u32 is_below(const Number& number) const {
        Number difference;
        return subtract(difference, number, n);
    }

    // Returns 1 if all limbs are equal, otherwise 0.
    LW_FN u32 is_equal(const Number& a, const Number& b) const {
        u32 differs[HELD];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            u32 any = 0;
#pragma unroll
            for (int i = 0; i < M; i++) any |= a.limb[h][i] ^ b.limb[h][i];
            differs[h] = any != 0;
        }
        return group.gather(differs) == 0;
    }

    LW_FN u32 is_zero(const Number& number) const {
        u32 any_lane[HELD];
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            u32 any = 0;
#pragma unroll
            for (int i = 0; i < M; i++) any |= number.limb[h][i];
            any_lane[h] = any != 0;
        }
        return group.gather(any_lane) == 0;
    }
};
