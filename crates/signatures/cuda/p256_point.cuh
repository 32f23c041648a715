// Points of P-256, y^2 = x^3 - 3 x + b, in Jacobian coordinates: (X / Z^2, Y / Z^3), infinity having Z = 0. Coordinates
// are in Montgomery form. The formulas are from the Explicit-Formulas Database (Bernstein, Lange): dbl-2001-b, and
// add-2007-bl and madd-2007-bl without their doublings.
#pragma once
#include "p256_field.cuh"

struct Point {
    Fp x, y, z;
};

LW_FN void point_set_infinity(Point& p) {
    fp_set(p.x, P256_ONE);
    p.y = p.x;
#pragma unroll
    for (int i = 0; i < 8; i++) p.z.limb[i] = 0;
}

LW_FN void point_set_affine(Point& p, const Fp& x, const Fp& y) {
    p.x = x;
    p.y = y;
    fp_set(p.z, P256_ONE);
}

// p = 2 p. No point has order two, and infinity stays infinity.
LW_FN void point_double(Point& p) {
    Fp delta, gamma, beta, alpha, t;
    fp_sqr(delta, p.z);
    fp_sqr(gamma, p.y);
    fp_mul(beta, p.x, gamma);
    // z = (y + z)^2 - gamma - delta
    fp_add(p.z, p.z, p.y);
    fp_sqr(p.z, p.z);
    fp_sub(p.z, p.z, gamma);
    fp_sub(p.z, p.z, delta);
    // alpha = 3 (x - delta) (x + delta)
    fp_sub(t, p.x, delta);
    fp_add(alpha, p.x, delta);
    fp_mul(t, t, alpha);
    fp_add(alpha, t, t);
    fp_add(alpha, alpha, t);
    // x = alpha^2 - 8 beta, y = alpha (4 beta - x) - 8 gamma^2
    fp_add(beta, beta, beta);
    fp_add(beta, beta, beta);
    fp_sqr(p.x, alpha);
    fp_sub(p.x, p.x, beta);
    fp_sub(p.x, p.x, beta);
    fp_sub(beta, beta, p.x);
    fp_mul(p.y, alpha, beta);
    fp_add(gamma, gamma, gamma);
    fp_sqr(gamma, gamma);
    fp_add(gamma, gamma, gamma);
    fp_sub(p.y, p.y, gamma);
}

// The common last part of both additions: p = p + q, where (u, s) are p's coordinates for the common denominator, and h
// and r are q's coordinates minus p's. z must be the product of the two points' z.
LW_FN void point_finish_add(Point& p, const Fp& u, const Fp& s, const Fp& h, const Fp& r, const Fp& z) {
    Fp hh, hhh, v;
    fp_mul(p.z, z, h);
    fp_sqr(hh, h);
    fp_mul(hhh, hh, h);
    fp_mul(v, u, hh);
    fp_sqr(p.x, r);
    fp_sub(p.x, p.x, hhh);
    fp_sub(p.x, p.x, v);
    fp_sub(p.x, p.x, v);
    fp_sub(v, v, p.x);
    fp_mul(p.y, r, v);
    fp_mul(hhh, hhh, s);
    fp_sub(p.y, p.y, hhh);
}

// p = p + q for any p and any q except infinity. If both are the same point, p is unchanged and 1 is returned: the
// caller must double the point. Opposite points give Z = 0.
LW_FN u32 point_add(Point& p, const Point& q) {
    if (fp_is_zero(p.z)) {
        p = q;
        return 0;
    }
    Fp u, s, h, r, t;
    fp_sqr(t, q.z);
    fp_mul(u, p.x, t);
    fp_mul(t, t, q.z);
    fp_mul(s, p.y, t);
    fp_sqr(t, p.z);
    fp_mul(h, q.x, t);
    fp_mul(t, t, p.z);
    fp_mul(r, q.y, t);
    fp_sub(h, h, u);
    fp_sub(r, r, s);
    if (fp_is_zero(h) & fp_is_zero(r)) return 1;
    fp_mul(t, p.z, q.z);
    point_finish_add(p, u, s, h, r, t);
    return 0;
}

// `point_add` for a q with z = 1.
LW_FN u32 point_add_affine(Point& p, const Fp& x, const Fp& y) {
    if (fp_is_zero(p.z)) {
        point_set_affine(p, x, y);
        return 0;
    }
    Fp h, r, t, u = p.x, s = p.y;
    fp_sqr(t, p.z);
    fp_mul(h, x, t);
    fp_mul(t, t, p.z);
    fp_mul(r, y, t);
    fp_sub(h, h, u);
    fp_sub(r, r, s);
    if (fp_is_zero(h) & fp_is_zero(r)) return 1;
    t = p.z;
    point_finish_add(p, u, s, h, r, t);
    return 0;
}
