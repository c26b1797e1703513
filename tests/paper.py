"""Independent NumPy transcription of the mathematics of the paper (edRVFL-kF, edRVFL-kF-Bayes).

Made from the text of the paper alone, by somebody who had not seen the package.  Dense, float64, slow and literal.

Conventions
-----------
* Equation numbers here are the LaTeX *labels* of paper.tex: (29) is `\\label{29}`.  The compiled PDF
  numbers the equations differently (by counting: label 10 -> (9), th3 -> (10), 26 -> (16), 27 -> (17),
  29 -> (19), 30..35 -> (21)..(26)).
* "paper.tex:NNN" is a line of its LaTeX source.  "line N" alone is the printed number of an algorithm's line
  (every \\State counts, \\Statex does not).
* One sub-learner at a time: the subscript l is dropped.
* G_t = D_t^T D_t.  Row-sample convention: D_t is (b_t, N+s), Y_t is (b_t, m), theta is (N+s, m).
* lists are 0-based: batches[t-1] is (D_t, Y_t); the returned list's entry [t-1] belongs to step t.

As printed
----------
Places where the print is ambiguous, contradicts itself, or is likely a slip; what is taken, and why.

 1. Start of eta-dagger, Algorithm 1 (paper.tex:258, footnote 2 at :273) and Algorithm 2 (:367), against
    Theorem 3 (:238), (16)/(17) (:1190-1197), (26)/(27) (:332, :336).
    The algorithms set eta-dagger to eta_0 at t = 1 and start the Gram updates at t = 2, so D_1^T D_1
    NEVER enters (not "later": for the whole stream).  The theorems' eta_{t+1} sums i = 1..t.
    Footnote 2 makes clear it is deliberate.  literal_start=True is the algorithms,
    literal_start=False the theorems.  The printed claim "no learning dissipation ... the same as the
    offline expert" (:213, :217, :1151) holds for literal_start=False only; with the literal start
    theta_{t+1} = (lam I + sum_{i=2..t} G_i + k G_{t+1})^{-1} sum_{i=1..t} D_i^T Y_i.  (Footnote 2
    speaks of "unaware of any prior knowledge" as the reason, but what it leaves out is the data D_1.)
 2. Time index of eta-dagger: Algorithm 1 calls it eta^dag_{t+1} (:258-261, with eta^dag_2 = eta_0 at
    t = 1), Algorithm 2 eta^dag_t (:367-374, eta^dag_1 = eta_0).  Same matrix, other name.  Here
    "eta_dagger" at step t is the one in force after step t's lines 7-8 (resp. 8 / 11).
 3. Which eta enters (29) at t > 1.  (28), (29) (:343-351) and Algorithm 2's line 12 (:372) print
    eta_t without dagger: the FULL eta_t of the previous step's line 13, which contains
    k_next(t-1) * D_t^T D_t.  Line 9 (:368) at t == 1 prints eta^dag_1, since no eta_1 was made.
    Taken as printed: at t > 1 no dagger.  One may suspect a dropped dagger in line 12 (by analogy with
    line 9), but three places agree, and the text of :341 says N(theta_t, eta_t).
    Consequence: neither k_{t+1} nor k_t has seen G_t in full; eta_t has seen k_next(t-1) * G_t.
 4. literal_start=False in Algorithm 2 is not printed, so neither is its eta for the k's at t = 1:
    eta^dag_1 (line 9's words; now with G_1 inside) or eta_0 (line 8's value).  Default: the words of
    line 9, i.e. the changed eta^dag_1; `k_eta_at_start="eta_0"` gives the other.  With
    literal_start=True both are the same.
 5. k_t is computed twice for the same batch: as "k_{t+1}" at step t-1 with eta_{t-1} and as "k_t" at
    step t with eta_t (:372).  Theorem 4 (:320-323, :332, :336) uses ONE k_t, both inside Delta_{U_t}
    (that is, in eta_t, built at step t-1) and in the term "- k_t L-hat_t".  The algorithm recomputes it;
    the figures (:563, :647) plot two different curves "with a phase shift", so the recomputation is
    meant.  algorithm_2 recomputes; algorithm_2_reusing does what Theorem 4 says.  Consequence of
    recomputing: see `pseudo_targets` - theta is not the minimiser of Theorem 4's U_{t+1}.
    (27) with a recomputed k_t IS still the minimiser of (26) with that k_t in both places and the
    incoming theta_t; it is "nabla U_t(theta_t) = 0" (:1146) that then fails.
 6. k_1 at t = 1 (line 9, :368) multiplies theta_1 = 0 in line 14, so it has no effect on anything.
 7. b in (28)/(29): one batch size b is assumed (:182).  For unequal batches: each trace is divided by
    its own matrix's size, b_{t+1} for k_{t+1} and b_t for k_t (the only reading in which Tr/b is a mean).
 8. (29) is introduced with "calculated by Moore-Penrose" (:348) but prints an ordinary inverse of
    (D eta D^T + sigma I).  Taken as printed.  They differ much when b > N+s (D eta D^T is then
    singular): Tr >= (b - (N+s)) / sigma, so (29) gives k <= kappa * sigma * b / (b - (N+s)), i.e. k is
    essentially sigma and -kF-Bayes turns into -R; a pseudo-inverse would drop those directions.
 9. The two other estimators (:347) are printed for k_t only, without kappa and sigma.  Taken: same form
    for k_{t+1} with D_{t+1}; both times kappa; sigma I inside the inverse of the random pick; no sigma
    in the "trace" one (there is no inverse to guard).  "random_pick of a matrix": taken as ONE DIAGONAL
    element (it replaces Tr[.]/b, the diagonal's mean; an off-diagonal one can be 0 or negative).
    Whether t and t+1 share the draw is not printed: `pick(t, which, b)` decides.
10. X_{T+1} "assumed accessible" (:254, :362).  What to do without it is not printed.  Taken: no forward
    term in eta_{T+1} nor theta_{T+1} (as k_{T+1} = 0), while "- k_t G_t" for the data in hand STAYS.
    This agrees with the closed form with k_next = 0.
11. Algorithm 1 prints k_l in line 9 (:261) but k in line 11 (:263).  Taken: the same number.
12. (34) (:428) uses theta_{l,t} with 1 <= t <= T, while the algorithms decide with theta_{l,t+1} after
    step t (:267, :380) and (33) (:420) is "after the learner finishes t-th learning".  By the letter
    regret(1) is that of theta_1 = 0 (uniform softmax) and theta_{T+1} is never scored; as an online
    regret ("guess with theta_t", line 6) that is defensible, but as "immediate" testset regret next to
    acc.(t) it may be a slip for t+1.  Same for (35) (:434).  The functions here take scores, so the
    caller picks; both readings are the same function of other scores.
13. (34) divides by L * |X_te| INSIDE the squared norm, so regret falls as 1/|X_te| (a mean of squares
    would divide by |X_te| outside).  Taken as printed.
14. (35) prints the sum over m only, the numerator would be a vector over samples; the division by
    |X_te| shows that a sum over the samples too is meant.  Taken: sum over both.  0 ln 0 = 0.
15. "Cumulative regret" (:430) has no formula.  Taken: running sums; the last is "the total".
16. (30)-(32): |Q| is used for the number of tasks Q; (31), (32) lack brackets: the sum is over the
    difference.  (32)'s R^ind_1 is not used.  At Q = 1 (31), (32) are 0/0: nan here.
17. (30) defines R_{Q,q} only after the last task; for the ACC curves (R with Q = current task) call with
    the leading square block of R.
18. (4) has no 1/2's while the appendix does (:1157, :1159): same minimiser, eta_0 = (lam I)^{-1}.
    (4) also prints "Y_q" with m_q columns; in OTCIL m is the total number of classes (:182).
19. theta_0 != 0: (26) keeps theta_0, but (27) "correspondingly" (:332-335) has no theta_0 term; only (20)
    has it.  (27)/(21)/Theorem 3 are right only for theta_0 = 0: "both drawn i.i.d." (:1230) does not make
    (G_{t+1} - G_t) theta_0 vanish except in expectation.  Running (21) from theta_1 = theta_0 != 0
    gives the right-hand side (lam I + k G_1) theta_0 + sum D^T Y instead of
    (lam I + k G_{t+1}) theta_0 + sum D^T Y.  (20) telescopes exactly to (13) for eta's of Theorem 3,
    with theta_1 = theta_0 (the minimiser of U_1, t = 0).
20. The algorithms set theta_0 = theta_1 = 0, so L-hat = 1/2 ||D (theta - theta_0)||^2 is (k/2)||D theta||^2.
21. Ensemble: "averaged or median values ... after SoftMax" (:152), while (34), (35) print the average.
    immediate_accuracy takes ready probabilities, or averages over a leading axis L if there is one.
22. (24), (28)'s text (:341) names the distribution of "theta_{t+1}" as N(theta_t, eta_t), a prior; no
    consequence for the transcription.
23. Algorithms' "softmax{D_te theta_{t+1}}" (:267): softmax over classes per sub-learner, per sample.
"""

import numpy as np

# ----------------------------------------------------------------------------------------------------
# helpers
# ----------------------------------------------------------------------------------------------------


def softmax(scores):
    """softmax over the last axis (classes); the maximum is subtracted, which changes nothing on paper."""
    scores = np.asarray(scores, dtype=np.float64)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def relative_error(got, want):
    """||got - want||_F / ||want||_F  (the absolute norm if want is zero)."""
    got = np.asarray(got, dtype=np.float64)
    want = np.asarray(want, dtype=np.float64)
    if got.shape != want.shape:
        raise ValueError(f"shapes differ: {got.shape} and {want.shape}")
    d = np.sqrt(np.sum((got - want) ** 2))
    n = np.sqrt(np.sum(want**2))
    return float(d / n) if n > 0 else float(d)


def _f(a):
    return np.asarray(a, dtype=np.float64)


def _next_block(batches, t, D_last):
    """D_{t+1} for 1 <= t <= T, or None where there is none."""
    if t < len(batches):
        return _f(batches[t][0])
    return None if D_last is None else _f(D_last)


# ----------------------------------------------------------------------------------------------------
# Section 3.2: features and the offline learner
# ----------------------------------------------------------------------------------------------------


def features(W_list, X, activation):
    """(2): H_1 = g_1(X W_1).   (3): H_l = g_l([H_{l-1} | X] W_l).   D_l = [H_l | X]  (paper.tex:152).

    W_list[0]: (s, N).  W_list[l > 0]: (N+s, N), rows ordered as in [H_{l-1} | X].
    Returns the list [D_1, ..., D_L], each (n, N+s).
    """
    X = _f(X)
    D = []
    H = None
    for l, W in enumerate(W_list):
        W = _f(W)
        if l == 0:
            H = activation(X @ W)  # (2)
        else:
            H = activation(np.concatenate([H, X], axis=1) @ W)  # (3)
        D.append(np.concatenate([H, X], axis=1))
    return D


def offline_primal(D, Y, lam):
    """(5) primal: theta = (D^T D + lam I)^{-1} D^T Y."""
    D, Y = _f(D), _f(Y)
    return np.linalg.inv(D.T @ D + lam * np.eye(D.shape[1])) @ D.T @ Y


def offline_dual(D, Y, lam):
    """(5) dual: theta = D^T (D D^T + lam I)^{-1} Y."""
    D, Y = _f(D), _f(Y)
    return D.T @ np.linalg.inv(D @ D.T + lam * np.eye(D.shape[0])) @ Y


# ----------------------------------------------------------------------------------------------------
# Algorithm 1
# ----------------------------------------------------------------------------------------------------


def _rank_update(eta, D, k):
    """eta - eta k D^T (I + k D eta D^T)^{-1} D eta: the update of Algorithm 1's line 8 (k = 1) and 9."""
    b = D.shape[0]
    return eta - eta @ (k * D.T) @ np.linalg.inv(np.eye(b) + k * (D @ eta @ D.T)) @ D @ eta


def algorithm_1(batches, lam, k, *, X_last=None, literal_start=True):
    """Algorithm 1 (edRVFL-kF), paper.tex:247-274, for one sub-learner; its theta step is (th3)/(21).

    batches: list of (D_t, Y_t), t = 1..T.  X_last: the FEATURE block D_{T+1}, or None (then the last step
    has no forward term).  literal_start=True: eta-dagger_2 = eta_0 at t == 1, as printed (line 7 and
    footnote 2); False: line 8's update is done with D_1 at t == 1 too (Theorem 3's eta).

    Returns a list with one dict per t: theta = theta_{t+1}; eta_dagger = Algorithm 1's
    eta^dag_{t+1}, the one after step t; eta = eta_{t+1}.
    """
    D1, Y1 = _f(batches[0][0]), _f(batches[0][1])
    p, m = D1.shape[1], Y1.shape[1]
    T = len(batches)

    # line 1: Initialize theta_0 = theta_1 = 0, eta_0 = (lam I)^{-1}
    theta = np.zeros((p, m))
    eta_0 = np.linalg.inv(lam * np.eye(p))
    eta_dagger = None
    out = []

    # lines 2, 3: for 1 <= t <= T
    for t in range(1, T + 1):
        # lines 4, 6: observe (X_{t+1}, Y_t), compute D_{t+1}
        D_t, Y_t = _f(batches[t - 1][0]), _f(batches[t - 1][1])
        D_n = _next_block(batches, t, X_last)

        # line 7: if t == 1: eta^dag_2 = eta_0   (footnote 2)
        if t == 1:
            eta_dagger = eta_0
            if not literal_start:
                # not printed: footnote 2's ((eta_0)^{-1} + D_1^T D_1)^{-1}, by line 8's formula
                eta_dagger = _rank_update(eta_0, D_t, 1.0)
        # line 8: else: eta^dag_{t+1} = eta^dag_t
        #               - eta^dag_t D_t^T (I + D_t eta^dag_t D_t^T)^{-1} D_t eta^dag_t
        else:
            eta_dagger = _rank_update(eta_dagger, D_t, 1.0)

        # line 9: eta_{t+1} = eta^dag_{t+1} - eta^dag_{t+1} k D_{t+1}^T
        #                     (I + k D_{t+1} eta^dag_{t+1} D_{t+1}^T)^{-1} D_{t+1} eta^dag_{t+1}
        if D_n is None:
            eta = eta_dagger.copy()
            G_n = np.zeros((p, p))
        else:
            eta = _rank_update(eta_dagger, D_n, k)
            G_n = D_n.T @ D_n

        # lines 10, 11: theta_{t+1} = theta_t - eta_{t+1} [ (G_t + k G_{t+1} - k G_t) theta_t - D_t^T Y_t ]
        G_t = D_t.T @ D_t
        theta = theta - eta @ ((G_t + k * G_n - k * G_t) @ theta - D_t.T @ Y_t)

        out.append({"theta": theta.copy(), "eta_dagger": eta_dagger.copy(), "eta": eta.copy()})
        # lines 12-17: response on request (see softmax, immediate_accuracy)
    return out


# ----------------------------------------------------------------------------------------------------
# Algorithm 2
# ----------------------------------------------------------------------------------------------------


def k_estimate(D, eta, kappa, sigma, estimator="inverse_trace", row=None):
    """One k, for a block D (b, p) and a covariance eta.

    "inverse_trace": (29)  kappa * ( Tr[(D eta D^T + sigma I)^{-1}] / b )^{-1}
    "trace":         paper.tex:347, scaled as (29):  kappa * Tr[D eta D^T] / b            (no sigma)
    "random_pick":   paper.tex:347, scaled as (29):  kappa * ( [(D eta D^T + sigma I)^{-1}]_{row,row} )^{-1}
    b is the number of rows of this D.
    """
    D = _f(D)
    b = D.shape[0]
    S = D @ eta @ D.T
    if estimator == "inverse_trace":
        return float(kappa * (np.trace(np.linalg.inv(S + sigma * np.eye(b))) / b) ** -1)
    if estimator == "trace":
        return float(kappa * np.trace(S) / b)
    if estimator == "random_pick":
        return float(kappa * np.linalg.inv(S + sigma * np.eye(b))[row, row] ** -1)
    raise ValueError(f"no such estimator: {estimator}")


def _algorithm_2(
    batches, lam, kappa, sigma, D_last, literal_start, estimator, pick, reuse, k_eta_at_start
):
    D1, Y1 = _f(batches[0][0]), _f(batches[0][1])
    p, m = D1.shape[1], Y1.shape[1]
    T = len(batches)

    def get_k(D, eta, t, which):
        row = pick(t, which, D.shape[0]) if estimator == "random_pick" else None
        return k_estimate(D, eta, kappa, sigma, estimator, row)

    # line 1: Initialize theta_0 = theta_1 = 0, eta_0 = (lam I)^{-1}
    theta = np.zeros((p, m))
    eta_0 = np.linalg.inv(lam * np.eye(p))
    eta_dagger = None
    eta = None  # eta_t on entering step t > 1
    k_next_before = 0.0  # what the previous step called k_{t+1}
    out = []

    # lines 2, 3: for 1 <= t <= T
    for t in range(1, T + 1):
        # lines 4, 6: observe (X_{t+1}, Y_t), compute D_{t+1}
        D_t, Y_t = _f(batches[t - 1][0]), _f(batches[t - 1][1])
        D_n = _next_block(batches, t, D_last)

        # line 7: if t == 1
        if t == 1:
            # line 8: eta^dag_1 = eta_0
            eta_dagger = eta_0
            if not literal_start:
                # not printed: line 11's formula with D_1
                eta_dagger = _rank_update(eta_0, D_t, 1.0)
            # line 9: get k_{t+1}(eta^dag_1) and k_t(eta^dag_1) by (29)
            eta_for_k = eta_dagger if k_eta_at_start == "dagger" else eta_0
        # line 10: else
        else:
            # line 11: eta^dag_t = eta^dag_{t-1} - eta^dag_{t-1} D_t^T
            #                      (I + D_t eta^dag_{t-1} D_t^T)^{-1} D_t eta^dag_{t-1}
            eta_dagger = _rank_update(eta_dagger, D_t, 1.0)
            # line 12: get k_{t+1}(eta_t) and k_t(eta_t) by (29): no dagger, the eta_t of the previous line 13
            eta_for_k = eta

        k_next = 0.0 if D_n is None else get_k(D_n, eta_for_k, t, "next")
        if reuse:
            k_t = k_next_before
        else:
            k_t = get_k(D_t, eta_for_k, t, "t")

        # line 13: eta_{t+1} = eta^dag_t - eta^dag_t k_{t+1} D_{t+1}^T
        #                      (I + k_{t+1} D_{t+1} eta^dag_t D_{t+1}^T)^{-1} D_{t+1} eta^dag_t
        if D_n is None:
            eta = eta_dagger.copy()
            G_n = np.zeros((p, p))
        else:
            eta = _rank_update(eta_dagger, D_n, k_next)
            G_n = D_n.T @ D_n

        # line 14: theta_{t+1} = theta_t
        #          - eta_{t+1} [ (k_{t+1} G_{t+1} + (1 - k_t) G_t) theta_t - D_t^T Y_t ]        (27)
        G_t = D_t.T @ D_t
        theta = theta - eta @ ((k_next * G_n + (1.0 - k_t) * G_t) @ theta - D_t.T @ Y_t)

        out.append(
            {
                "theta": theta.copy(),
                "eta_dagger": eta_dagger.copy(),
                "eta": eta.copy(),
                "k_t": k_t,
                "k_next": k_next,
            }
        )
        k_next_before = k_next
        # lines 15-20: response on request
    return out


def algorithm_2(
    batches,
    lam,
    kappa,
    sigma,
    *,
    D_last=None,
    literal_start=True,
    estimator="inverse_trace",
    pick=None,
    k_eta_at_start="dagger",
):
    """Algorithm 2 (edRVFL-kF-Bayes), paper.tex:355-384, for one sub-learner, with (29) and (27).

    k_next is k_{t+1} and k_t is k_t, both computed at step t: from eta^dag_1 at t == 1 (line 9), from the
    full eta_t (no dagger; left by line 13 of step t-1) else (line 12).
    D_last is D_{T+1}; without it the last k_next is 0 and there is no forward term.
    estimator: "inverse_trace" (29), "trace", "random_pick" (paper.tex:347), see k_estimate;
    pick(t, which, b) -> row index, which is "next" (asked first) or "t".
    literal_start=False: line 11's update is done with D_1 at t == 1 too; then `k_eta_at_start`
    ("dagger" or "eta_0") says which eta the k's of t == 1 use (module notes, 4).

    Returns a list with one dict per t: theta = theta_{t+1}; eta_dagger = Algorithm 2's eta^dag_t;
    eta = eta_{t+1}; k_t; k_next.
    """
    return _algorithm_2(
        batches, lam, kappa, sigma, D_last, literal_start, estimator, pick, False, k_eta_at_start
    )


def algorithm_2_reusing(
    batches,
    lam,
    kappa,
    sigma,
    *,
    D_last=None,
    literal_start=True,
    estimator="inverse_trace",
    pick=None,
    k_eta_at_start="dagger",
):
    """Algorithm 2 but with k_t := the k_{t+1} of the previous step (0 at t = 1): Theorem 4's single k_t."""
    return _algorithm_2(
        batches, lam, kappa, sigma, D_last, literal_start, estimator, pick, True, k_eta_at_start
    )


# ----------------------------------------------------------------------------------------------------
# closed forms
# ----------------------------------------------------------------------------------------------------


def _precision(batches, lam, t, k_next, D_next, first):
    """lam I + sum_{i=first}^{t} D_i^T D_i + k_next D_next^T D_next   (Theorem 3 / below (27))."""
    p = _f(batches[0][0]).shape[1]
    A = lam * np.eye(p)
    for i in range(first, t + 1):
        D = _f(batches[i - 1][0])
        A = A + D.T @ D
    if D_next is not None:
        D = _f(D_next)
        A = A + k_next * (D.T @ D)
    return A


def closed_form(batches, lam, t, k_next, D_next, literal_start=True):
    """theta_{t+1} from all the data, theta_0 = 0.

    literal_start=False: the minimiser of (8)/(13), resp. Theorem 4's U_{t+1} with k_next = k_{t+1}:
        (lam I + sum_{i=1..t} G_i + k_next G_next)^{-1} sum_{i=1..t} D_i^T Y_i.
    literal_start=True: what Algorithm 1 as printed gives.  With A_{t+1} = eta_{t+1}^{-1}, line 11 is
        A_{t+1} theta_{t+1} = (A_{t+1} - (1-k) G_t - k G_{t+1}) theta_t + D_t^T Y_t = A_t theta_t + D_t^T Y_t
    for t > 1, and A_2 theta_2 = D_1^T Y_1, so the same with sum_{i=2..t} G_i in the inverse:
        (lam I + sum_{i=2..t} G_i + k_next G_next)^{-1} sum_{i=1..t} D_i^T Y_i,
    the minimiser of (13) minus 1/2 ||D_1 theta||^2 (batch 1's loss made linear).

    Holds for algorithm_1 (k_next = k) and algorithm_2_reusing (k_next = k_{t+1}); NOT for algorithm_2 (see
    closed_form_targets).  D_next = None: no forward term.
    """
    A = _precision(batches, lam, t, k_next, D_next, 2 if literal_start else 1)
    rhs = sum(_f(D).T @ _f(Y) for D, Y in batches[:t])
    return np.linalg.inv(A) @ rhs


def pseudo_targets(batches, steps):
    """The targets Z_t = Y_t + (k_t - k_next(t-1)) D_t theta_t  on which algorithm_2 is exactly ridge.

    steps: algorithm_2's result; k_next(t-1) is the k_{t+1} of step t-1, theta_1 = 0 (so Z_1 = Y_1).
    Derivation: eta_t^{-1} = A^dag_{t-1} + k_next(t-1) G_t, and line 14 times eta_{t+1}^{-1} is
        A_{t+1} theta_{t+1} = (A^dag_t - (1 - k_t) G_t) theta_t + D_t^T Y_t
                            = (A^dag_{t-1} + k_t G_t) theta_t + D_t^T Y_t
                            = A_t theta_t + D_t^T ( Y_t + (k_t - k_next(t-1)) D_t theta_t ).
    """
    Z = []
    for t in range(1, len(batches) + 1):
        D, Y = _f(batches[t - 1][0]), _f(batches[t - 1][1])
        if t == 1:
            Z.append(Y.copy())
        else:
            before = steps[t - 2]
            Z.append(Y + (steps[t - 1]["k_t"] - before["k_next"]) * (D @ before["theta"]))
    return Z


def closed_form_targets(batches, lam, t, k_next, D_next, literal_start, targets):
    """closed_form with targets[i] in the place of Y_{i+1}; with pseudo_targets it is algorithm_2's theta_{t+1}."""
    return closed_form(
        [(D, Z) for (D, _), Z in zip(batches, targets)], lam, t, k_next, D_next, literal_start
    )


def closed_form_prior(batches, lam, t, k_next, D_next, theta_0):
    """theta_{t+1} for a prior theta_0 != 0: the minimiser of (13) (= (8) with the appendix's losses),

        U_{t+1}(theta) = 1/2 Tr[(theta - theta_0)^T eta_0^{-1} (theta - theta_0)]
                         + sum_{i=1..t} 1/2 ||D_i theta - Y_i||_F^2
                         + (k_next / 2) ||D_{t+1} (theta - theta_0)||_F^2 ,

    with k for -kF, or k_{t+1} for Theorem 4's U_{t+1}.  So, with eta_0^{-1} = lam I,

        (lam I + sum_{i=1..t} G_i + k_next G_{t+1}) theta = (lam I + k_next G_{t+1}) theta_0 + sum_{i=1..t} D_i^T Y_i.

    theta_0 enters through the prior (lam theta_0) and through ONE forward term only, that of the current
    D_{t+1} (k_next G_{t+1} theta_0): earlier ones cancel.  Indeed (20) times eta_{t+1}^{-1} is
        A_{t+1} theta_{t+1} = A_t theta_t + D_t^T Y_t + k (G_{t+1} - G_t) theta_0     (the minimiser of (17)),
    and (26)'s minimiser the same with k_{t+1} G_{t+1} - k_t G_t; summed from theta_1 = theta_0,
    A_1 = lam I + k_1 G_1, it telescopes to the above, if A_t and (26) hold the same k_t (otherwise
    (k_t - k_next(t-1)) G_t (theta_t - theta_0) is left over, for every t).
    Full start only (all Grams i = 1..t): the literal start has no printed form for theta_0 != 0.
    Not what (21)/(27)/the algorithms would give from theta_1 = theta_0 (module notes, 19).
    D_next = None: no forward term.
    """
    theta_0 = _f(theta_0)
    A = _precision(batches, lam, t, k_next, D_next, 1)
    rhs = lam * theta_0 + sum(_f(D).T @ _f(Y) for D, Y in batches[:t])
    if D_next is not None:
        D = _f(D_next)
        rhs = rhs + k_next * (D.T @ D) @ theta_0
    return np.linalg.inv(A) @ rhs


def equation_20(batches, lam, k, theta_0, D_last=None):
    """The recursion (20) from theta_1 = theta_0, with Theorem 3's eta_{t+1} (full start), inverted directly.

    k: a number, or a list [k_1, ..., k_{T+1}] for (26)'s minimisers with each k_t used in both places.
    Returns [theta_2, ..., theta_{T+1}].  Without D_last, k_{T+1} G_{T+1} is 0.
    """
    theta_0 = _f(theta_0)
    T = len(batches)
    ks = [k] * (T + 1) if np.isscalar(k) else list(k)
    theta = theta_0.copy()
    out = []
    for t in range(1, T + 1):
        D_t, Y_t = _f(batches[t - 1][0]), _f(batches[t - 1][1])
        D_n = _next_block(batches, t, D_last)
        k_t, k_n = ks[t - 1], ks[t]
        G_t = D_t.T @ D_t
        G_n = np.zeros_like(G_t) if D_n is None else D_n.T @ D_n
        eta = np.linalg.inv(_precision(batches, lam, t, k_n, D_n, 1))
        theta = (
            theta
            - eta @ ((G_t + k_n * G_n - k_t * G_t) @ theta - D_t.T @ Y_t)
            + eta @ (k_n * G_n - k_t * G_t) @ theta_0
        )
        out.append(theta.copy())
    return out


# ----------------------------------------------------------------------------------------------------
# metrics
# ----------------------------------------------------------------------------------------------------


def ACC(R):
    """(30): ACC = 1/|Q| sum_{q=1..Q} R_{Q,q};  R[i-1, j-1] = R_{i,j}, accuracy on task j after task i."""
    R = _f(R)
    Q = R.shape[0]
    return float(sum(R[Q - 1, q - 1] for q in range(1, Q + 1)) / Q)


def BWT(R):
    """(31): BWT = 1/(|Q|-1) sum_{q=1..Q-1} (R_{Q,q} - R_{q,q});  nan for Q = 1."""
    R = _f(R)
    Q = R.shape[0]
    if Q == 1:
        return float("nan")
    return float(sum(R[Q - 1, q - 1] - R[q - 1, q - 1] for q in range(1, Q)) / (Q - 1))


def FWT(R, R_ind):
    """(32): FWT = 1/(|Q|-1) sum_{q=2..Q} (R_{q,q} - R^ind_q);  R_ind[q-1], of length Q; nan for Q = 1."""
    R, R_ind = _f(R), _f(R_ind)
    Q = R.shape[0]
    if Q == 1:
        return float("nan")
    return float(sum(R[q - 1, q - 1] - R_ind[q - 1] for q in range(2, Q + 1)) / (Q - 1))


def immediate_accuracy(probabilities, y):
    """(33): acc.(t) = R_{t,1..Q}: the accuracy on the entire test set after step t.

    probabilities: (n, m) of the ensemble, or (L, n, m), which is averaged over L first (paper.tex:152).
    y: (n,) labels, or (n, m) one-hot.  Ties go to the lowest class (not printed).
    """
    P = _f(probabilities)
    if P.ndim == 3:
        P = P.mean(axis=0)
    y = np.asarray(y)
    if y.ndim == 2:
        y = y.argmax(axis=1)
    return float(np.mean(P.argmax(axis=1) == y))


def regret(scores, Y):
    """(34): || ( sum_l softmax(D_{l,te} theta_l) - L Y_te ) / ( L |X_te| ) ||_F^2 .

    scores: (L, n, m), D_{l,te} theta_l (printed: theta_{l,t}; module notes, 12).  Y: (n, m) one-hot.
    """
    scores, Y = _f(scores), _f(Y)
    L, n, _ = scores.shape
    M = (softmax(scores).sum(axis=0) - L * Y) / (L * n)
    return float(np.sum(M**2))


def cumulative_regret(regrets):
    """paper.tex:430 (no formula): the running sums of regret(1), regret(2), ...; the last is the total."""
    return np.cumsum(_f(regrets))


def kl(scores, Y):
    """(35): sum_{samples, m} Y_te * ln( L Y_te / sum_l softmax(D_{l,te} theta_l) ) / |X_te| ,  0 ln 0 = 0."""
    scores, Y = _f(scores), _f(Y)
    L, n, m = scores.shape
    S = softmax(scores).sum(axis=0)
    total = 0.0
    for i in range(n):
        for j in range(m):
            if Y[i, j] > 0:
                total += Y[i, j] * np.log(L * Y[i, j] / S[i, j])
    return float(total / n)
