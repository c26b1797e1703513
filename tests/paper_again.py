r"""Second, independent transcription of Algorithms 1 and 2 (one sub-learner l).

Written from paper.tex alone.  "Alg. n line i" is the number that algorithmic[1]
prints (\State lines count, \Statex lines do not); "tex i" is the line of paper.tex.

Not transcribed (outside one sub-learner): W_l, D_{l,t} (eqs. 2-3), the loops over t
and l, "guess", the response (softmax, En, acc).  step() is one pass of the inner loop:
Alg. 1 lines 7-11 (tex 258-263), Alg. 2 lines 7-14 (tex 366-376).

Shapes: D_t (b, d), Y_t (b, m), D_next = D_{t+1} (b', d); theta (d, m); eta (d, d).
"""

import numpy as np
from numpy.linalg import inv


def _f64(a):
    return np.asarray(a, dtype=np.float64)


class AlgorithmOne:
    """Algorithm 1, edRVFL-kF for OTCIL (tex 247-274), one sub-learner.

    After step t:  theta = theta_{t+1}, eta = eta_{t+1}, eta_dagger = eta^dagger_{t+1}.
    """

    def __init__(self, d, m, lam, k, exact_start=False):
        self.d, self.m = int(d), int(m)
        self.lam, self.k = float(lam), float(k)
        self.exact_start = bool(exact_start)
        self.t = 0  # number of steps done; step() works at t = self.t + 1
        # Alg. 1 line 1 (tex 252):
        #   Initialize: {W_l}, {theta_{l,0} = theta_{l,1} = 0}, eta_{l,0} = (lambda_l . I)^{-1}.
        self.theta = np.zeros((self.d, self.m), dtype=np.float64)  # theta_1
        self.eta_0 = inv(self.lam * np.eye(self.d))  # eta_0
        # Not printed: eta_1 and eta^dagger_1 do not occur in Algorithm 1.  Both attributes
        # hold eta_0 until the first step, which overwrites them without reading them.
        self.eta = self.eta_0.copy()
        self.eta_dagger = self.eta_0.copy()

    def step(self, D_t, Y_t, D_next=None):
        # Alg. 1 line 3 (tex 254): For 1 <= t <= T, do:  # Assume X_{T+1} accessible.
        self.t += 1
        t, k = self.t, self.k
        # Alg. 1 line 4 (tex 255): Observe (X_{t+1}, Y_t)  # X_t already in-hand.
        # Alg. 1 line 6 (tex 257): Compute D_{l,t+1} by (2)-(3), and guess with theta_{l,t}.
        D_t, Y_t = _f64(D_t), _f64(Y_t)
        I_t = np.eye(D_t.shape[0])

        if t == 1:
            # Alg. 1 line 7 (tex 258): If t==1: eta^dagger_{l,2} = eta_{l,0}.
            # footnote 2 (tex 273): "... eta^dagger_{l,2} is set to initial eta_{l,0} instead
            #   of ((eta_{l,0})^{-1} + D_{l,1}^T D_{l,1})^{-1}."   (D_1 never enters eta.)
            dag = self.eta_0.copy()
            if self.exact_start:
                # NOT PRINTED (exact_start): line 8's formula at t = 1, from eta_0 with D_1.
                e = self.eta_0
                dag = e - e @ D_t.T @ inv(I_t + D_t @ e @ D_t.T) @ D_t @ e
        else:
            # Alg. 1 line 8 (tex 259): Else: Update eta^dagger_{l,t+1} = eta^dagger_{l,t}
            #   - eta^dagger_{l,t} D_{l,t}^T (I + D_{l,t} eta^dagger_{l,t} D_{l,t}^T)^{-1}
            #     D_{l,t} eta^dagger_{l,t}
            # footnote 3 (tex 274): the dagger is kept as an intermediate variable.
            e = self.eta_dagger  # eta^dagger_t
            dag = e - e @ D_t.T @ inv(I_t + D_t @ e @ D_t.T) @ D_t @ e
        self.eta_dagger = dag  # eta^dagger_{t+1}

        # Alg. 1 line 9 (tex 260-261): Update eta_{l,t+1} again:
        #   eta_{l,t+1} = eta^dagger_{l,t+1} - eta^dagger_{l,t+1} k_l D_{l,t+1}^T
        #     (I + k_l D_{l,t+1} eta^dagger_{l,t+1} D_{l,t+1}^T)^{-1} D_{l,t+1} eta^dagger_{l,t+1}
        if D_next is None:  # NOT PRINTED: no forward term
            self.eta = dag.copy()
            forward = 0.0
        else:
            D_n = _f64(D_next)
            I_n = np.eye(D_n.shape[0])
            self.eta = dag - dag @ (k * D_n.T) @ inv(I_n + k * (D_n @ dag @ D_n.T)) @ D_n @ dag
            forward = k * (D_n.T @ D_n)

        # Alg. 1 lines 10-11 (tex 262-263): Update theta_{l,t+1}:
        #   theta_{l,t+1} = theta_{l,t} - eta_{l,t+1} [ (D_{l,t}^T D_{l,t}
        #     + k . D_{l,t+1}^T D_{l,t+1} - k . D_{l,t}^T D_{l,t}) theta_{l,t} - D_{l,t}^T Y_t ]
        G_t = D_t.T @ D_t
        self.theta = self.theta - self.eta @ ((G_t + forward - k * G_t) @ self.theta - D_t.T @ Y_t)
        return self.theta


class AlgorithmTwo:
    """Algorithm 2, edRVFL-kF-Bayes for OTCIL (tex 355-384), one sub-learner.

    After step t:  theta = theta_{t+1}, eta = eta_{t+1}, eta_dagger = eta^dagger_t
    (the dagger index is one lower than in Algorithm 1, as printed),
    k_next = k_{t+1}, k_t = k_t (both computed in this step, from the same eta).
    """

    ESTIMATORS = ("inverse_trace", "random_pick", "trace")

    def __init__(
        self, d, m, lam, kappa, sigma, estimator="inverse_trace", pick=None, exact_start=False
    ):
        if estimator not in self.ESTIMATORS:
            raise ValueError(f"estimator must be one of {self.ESTIMATORS}")
        if estimator == "random_pick" and pick is None:
            raise ValueError("random_pick needs pick(t, which, b)")
        self.d, self.m = int(d), int(m)
        self.lam, self.kappa, self.sigma = float(lam), float(kappa), float(sigma)
        self.estimator, self.pick = estimator, pick
        self.exact_start = bool(exact_start)
        self.t = 0
        # Alg. 2 line 1 (tex 360):
        #   Initialize: {W_l}, {theta_{l,0} = theta_{l,1} = 0}, eta_{l,0} = (lambda_l . I)^{-1}.
        self.theta = np.zeros((self.d, self.m), dtype=np.float64)  # theta_1
        self.eta_0 = inv(self.lam * np.eye(self.d))  # eta_0
        # Not printed: eta_1 does not occur in Algorithm 2 (k at t == 1 takes eta^dagger_1).
        # Both attributes hold eta_0 until the first step, which does not read them.
        self.eta = self.eta_0.copy()
        self.eta_dagger = self.eta_0.copy()
        self.k_t = None
        self.k_next = None

    def _k(self, D, eta, which):
        """k_{t+1} (which="next", D = D_{t+1}) or k_t (which="t", D = D_t)."""
        b = D.shape[0]  # tex 182: "b is the batch size"
        S = D @ eta @ D.T
        if self.estimator == "trace":
            # tex 347: k_{l,t} = Tr[(D_{l,t} eta_{l,t} D_{l,t}^T)] / b     (no sigma)
            return self.kappa * (np.trace(S) / b)
        R = inv(S + self.sigma * np.eye(b))
        if self.estimator == "random_pick":
            # tex 347: k_{l,t} = (random_pick (D_{l,t} eta_{l,t} D_{l,t}^T)^{-1})^{-1}
            # (sigma I, the diagonal and kappa are the brief's, not printed there)
            i = self.pick(self.t, which, b)
            return self.kappa * (1.0 / R[i, i])
        # eq. (29), tex 349-352:
        #   k_{l,t+1} = kappa . (Tr[(D_{l,t+1} eta_{l,t} D_{l,t+1}^T + sigma I)^{-1}] / b)^{-1}
        #   k_{l,t}   = kappa . (Tr[(D_{l,t}   eta_{l,t} D_{l,t}^T   + sigma I)^{-1}] / b)^{-1}
        return self.kappa * (1.0 / (np.trace(R) / b))

    def step(self, D_t, Y_t, D_next=None):
        # Alg. 2 line 3 (tex 362): For 1 <= t <= T, do:  # Assume X_{T+1} accessible.
        self.t += 1
        t = self.t
        # Alg. 2 line 4 (tex 363): Observe (X_{t+1}, Y_t)  # X_t already in-hand.
        # Alg. 2 line 6 (tex 365): Compute D_{l,t+1} by (2)-(3), and guess with theta_{l,t}.
        D_t, Y_t = _f64(D_t), _f64(Y_t)
        D_n = None if D_next is None else _f64(D_next)
        I_t = np.eye(D_t.shape[0])

        # Alg. 2 line 7 (tex 366): If t==1:
        if t == 1:
            # Alg. 2 line 8 (tex 367): eta^dagger_{l,1} = eta_{l,0}.
            dag = self.eta_0.copy()
            if self.exact_start:
                # NOT PRINTED (exact_start): line 11's formula at t = 1, from eta_0 with D_1.
                e = self.eta_0
                dag = e - e @ D_t.T @ inv(I_t + D_t @ e @ D_t.T) @ D_t @ e
            # Alg. 2 line 9 (tex 368):
            #   Get k_{l,t+1}(eta^dagger_{l,1}) and k_{l,t}(eta^dagger_{l,1}) by (29)
            k_arg = dag
        # Alg. 2 line 10 (tex 370): Else:
        else:
            # Alg. 2 line 11 (tex 371): Update eta^dagger_{l,t} = eta^dagger_{l,t-1}
            #   - eta^dagger_{l,t-1} D_{l,t}^T (I + D_{l,t} eta^dagger_{l,t-1} D_{l,t}^T)^{-1}
            #     D_{l,t} eta^dagger_{l,t-1}
            e = self.eta_dagger  # eta^dagger_{t-1}
            dag = e - e @ D_t.T @ inv(I_t + D_t @ e @ D_t.T) @ D_t @ e
            # Alg. 2 line 12 (tex 372): Get k_{l,t+1}(eta_{l,t}) and k_{l,t}(eta_{l,t}) by (29)
            #   eta_{l,t} carries no dagger: it is what line 13 made in the step before.
            k_arg = self.eta  # eta_t
        self.eta_dagger = dag  # eta^dagger_t
        self.k_next = 0.0 if D_n is None else self._k(D_n, k_arg, "next")  # None: NOT PRINTED
        self.k_t = self._k(D_t, k_arg, "t")

        # Alg. 2 line 13 (tex 373-374): Update eta_{l,t+1}:
        #   eta_{l,t+1} = eta^dagger_{l,t} - eta^dagger_{l,t} k_{l,t+1} D_{l,t+1}^T
        #     (I + k_{l,t+1} D_{l,t+1} eta^dagger_{l,t} D_{l,t+1}^T)^{-1} D_{l,t+1} eta^dagger_{l,t}
        if D_n is None:  # NOT PRINTED: no forward term
            self.eta = dag.copy()
            forward = 0.0
        else:
            kn = self.k_next
            I_n = np.eye(D_n.shape[0])
            self.eta = dag - dag @ (kn * D_n.T) @ inv(I_n + kn * (D_n @ dag @ D_n.T)) @ D_n @ dag
            forward = kn * (D_n.T @ D_n)

        # Alg. 2 line 14 (tex 375-376): Update theta_{l,t+1}:
        #   theta_{l,t+1} = theta_{l,t} - eta_{l,t+1} [ (k_{l,t+1} D_{l,t+1}^T D_{l,t+1}
        #     + (1 - k_{l,t}) D_{l,t}^T D_{l,t}) theta_{l,t} - D_{l,t}^T Y_t ]
        self.theta = self.theta - self.eta @ (
            (forward + (1.0 - self.k_t) * (D_t.T @ D_t)) @ self.theta - D_t.T @ Y_t
        )
        return self.theta
