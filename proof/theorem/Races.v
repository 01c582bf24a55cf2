(* The states of a resource, and a proof that no program of them has a race.

   A program is a sequence of transitions. Each makes at most one call of the driver, so the calls
   of several threads interleave in every way. Streams, bytes, events, readers and the length of
   the program are unbounded. The order of calls is defined from the calls alone (`edge`, `before`).
   The typed states appear only in the rules (`step`) and in the proof (`inv`).

   A state is that of one byte. A buffer is a set of bytes that move together, and so are a bundle
   and a piece: one call moves any number of bytes. So `split_even`, `join` and `unzip` are no
   transitions. A replay of a graph is one `Use` of the bytes that its calls read and write.

   docs/soundness.md says what is assumed, and which function of host/ each rule stands for. *)

Require Import List Arith Lia.
Import ListNotations.

(* ==== Calls and their order ================================================================== *)

(* A line does one thing after another. All threads of the host are one line, because safe Rust
   orders whatever one thread hands to another. *)
Inductive line := Host | Stream (s : nat).

(* An event of the pool, or the event that belongs to stream s, which `hand_off` records. *)
Inductive event := Pool (n : nat) | Own (s : nat).

Inductive call :=
| Use (l : line) (rd wr : list nat)  (* the line reads and writes these bytes *)
| Free (l : line) (bs : list nat)    (* memory goes back: device memory in the order of a stream,
                                        page-locked memory by the host *)
| Alloc (l : line) (bs : list nat)   (* memory is lent; parts of it may have been freed before *)
| Record (s : nat) (e : event)
| Wait (l : line) (e : event).       (* a stream waits, or the host waits or asks with success *)

Definition on c := match c with
  | Use l _ _ => l | Free l _ => l | Alloc l _ => l | Record s _ => Stream s | Wait l _ => l end.
Definition touches c b := match c with
  | Use _ r w => In b r \/ In b w | Free _ bs => In b bs | Alloc _ bs => In b bs | _ => False end.
Definition writes c b := match c with
  | Use _ _ w => In b w | Free _ bs => In b bs | Alloc _ bs => In b bs | _ => False end.

Definition trace := list call.
Definition at_call (tr : trace) i c := nth_error tr i = Some c.

(* The promises of the driver. Call i comes directly before call j if both are of one line, if i is
   the host's and j is made later, if j waits for the newest record of an event, which is i, or if
   j allocates a byte that was last freed by i. *)
Inductive edge (tr : trace) (i j : nat) : Prop :=
| same_line c d : i < j -> at_call tr i c -> at_call tr j d -> on c = on d -> edge tr i j
| by_host c d : i < j -> at_call tr i c -> at_call tr j d -> on c = Host -> edge tr i j
| waited s l e : i < j -> at_call tr i (Record s e) -> at_call tr j (Wait l e) ->
    (forall k t, i < k -> k < j -> ~ at_call tr k (Record t e)) -> edge tr i j
| memory l m bs cs b : i < j ->
    at_call tr i (Free l bs) -> at_call tr j (Alloc m cs) -> In b bs -> In b cs ->
    (forall k r ds, i < k -> k < j -> In b ds -> ~ at_call tr k (Free r ds)) -> edge tr i j.

Inductive before (tr : trace) (i : nat) : nat -> Prop :=
| before_refl : before tr i i
| before_step j k : before tr i j -> edge tr j k -> before tr i k.

(* The first claim: two accesses to a byte of which one writes it are ordered. *)
Definition race_free tr := forall i j b c d,
  i < j -> at_call tr i c -> at_call tr j d -> touches c b -> touches d b ->
  writes c b \/ writes d b -> before tr i j.

(* Whether byte b is lent after these calls. *)
Definition lend b (now : bool) c := match c with
  | Alloc _ bs => if in_dec Nat.eq_dec b bs then true else now
  | Free _ bs => if in_dec Nat.eq_dec b bs then false else now
  | _ => now end.
Definition lent (tr : trace) b := fold_left (lend b) tr false.

(* The second claim: a byte is used and freed only while it is lent, and lent only while it is not.
   The first claim does not say this, because a stream may use a byte after it has freed it, and
   these two calls are ordered. *)
Definition lifetimes tr := forall j c b, at_call tr j c -> touches c b ->
  lent (firstn j tr) b = match c with Alloc _ _ => false | _ => true end.

(* ==== The typed states and their transitions ================================================= *)

(* The handles of a `Shared` that are more than handles. *)
Inductive reader :=
| Reading (l : line)        (* a `SharedRead` of a stream, or a slice that `Shared::host` gave *)
| Ended (s : nat)           (* a `SharedRead` of s has ended; s has waited for the producer *)
| Behind (n : nat)          (* in an `Event` that was recorded on a stream that had waited *)
| HandedOff (s t : nat).    (* between the two calls of `hand_off` *)

Inductive state :=
| Fresh                     (* never lent *)
| Freed
| Idle                      (* `R` *)
| On (s : nat)              (* `On<S, R>` *)
| InTransit (n : nat)       (* `Event<R>`; also a retired page-locked block of a pool, and a dropped
                               piece, whose event its `Split` keeps *)
| HandingOff (s t : nat)    (* between the two calls of `hand_off` *)
| Shared (p : nat) (rs : list (nat * nat)) (al : list reader)
                            (* `Shared`: the event of the producer; of each stream, the event of its
                               newest read that has ended; the readers *)
| Unsharing (l : line) (p : nat) (rs due : list (nat * nat))
                            (* `unshare` by l has still to wait for `due`, and then for p *)
| Forgotten.                (* leaked, for ever *)

(* The events of the pool that a state holds as leases. *)
Definition holds x n := match x with
  | InTransit m => m = n
  | Shared p rs al => p = n \/ (exists s, In (s, n) rs) \/ In (Behind n) al
  | Unsharing _ p rs _ => p = n \/ exists s, In (s, n) rs
  | _ => False end.

Definition states := nat -> state.
(* The pool lends an event only if nobody holds it. *)
Definition spare (st : states) n := forall b, ~ holds (st b) n.
(* A stream's newest read takes the place of its older ones. *)
Definition keep_newest (s n : nat) rs :=
  (s, n) :: filter (fun r : nat * nat => negb (fst r =? s)) rs.
(* The state of memory that line l may use. *)
Definition of_line l := match l with Host => Idle | Stream s => On s end.

(* The effect of a call on the state of a byte. *)
Inductive move (c : call) (b : nat) : state -> state -> Prop :=
| m_alloc l bs x : c = Alloc l bs -> In b bs -> x = Fresh \/ x = Freed -> move c b x (of_line l)
| m_use l rd wr : c = Use l rd wr -> move c b (of_line l) (of_line l)
| m_free l bs : c = Free l bs -> In b bs -> move c b (of_line l) Freed
| m_record s n : c = Record s (Pool n) -> move c b (On s) (InTransit n)
| m_wait l n : c = Wait l (Pool n) -> move c b (InTransit n) (of_line l)
| m_hand_off s t : c = Record s (Own s) -> move c b (On s) (HandingOff s t)
| m_handed_off s t : c = Wait (Stream t) (Own s) -> move c b (HandingOff s t) (On t)
| m_share s n : c = Record s (Pool n) -> move c b (On s) (Shared n [] [])
| m_reading p rs al l : c = Wait l (Pool p) ->
    move c b (Shared p rs al) (Shared p rs (Reading l :: al))
| m_read p rs al l rd wr : c = Use l rd wr -> ~ In b wr -> In (Reading l) al ->
    move c b (Shared p rs al) (Shared p rs al)
| m_end_read p rs al al' s n : c = Record s (Pool n) ->
    move c b (Shared p rs (al ++ Reading (Stream s) :: al'))
             (Shared p (keep_newest s n rs) (Ended s :: al ++ al'))
| m_record_read p rs al s n : c = Record s (Pool n) -> In (Reading (Stream s)) al ->
    move c b (Shared p rs al) (Shared p rs (Behind n :: al))
| m_wait_read p rs al al' t n : c = Wait (Stream t) (Pool n) ->
    move c b (Shared p rs (al ++ Behind n :: al')) (Shared p rs (Reading (Stream t) :: al ++ al'))
| m_read_hand_off p rs al al' s t : c = Record s (Own s) ->
    move c b (Shared p rs (al ++ Ended s :: al')) (Shared p rs (HandedOff s t :: al ++ al'))
| m_read_handed_off p rs al al' s t : c = Wait (Stream t) (Own s) ->
    move c b (Shared p rs (al ++ HandedOff s t :: al'))
             (Shared p rs (Reading (Stream t) :: al ++ al'))
| m_unshare l p s n rs due : c = Wait l (Pool n) ->
    move c b (Unsharing l p rs ((s, n) :: due)) (Unsharing l p rs due)
| m_unshared l p rs : c = Wait l (Pool p) -> move c b (Unsharing l p rs []) (of_line l).

(* Changes without a call. The last three give a value back after a failed call: `hand_off` whose
   wait failed, the same for a read, and `unshare` of which some waits failed. *)
Inductive quiet : state -> state -> Prop :=
| q_same x : quiet x x
| q_bind s : quiet Idle (On s)
| q_forget x : quiet x Forgotten
| q_read_again p rs al al' s :
    quiet (Shared p rs (al ++ Ended s :: al')) (Shared p rs (Reading (Stream s) :: al ++ al'))
| q_drop p rs al al' a : (forall s, a <> Reading (Stream s)) ->
    quiet (Shared p rs (al ++ a :: al')) (Shared p rs (al ++ al'))
| q_unshare l p rs : quiet (Shared p rs []) (Unsharing l p rs rs)
| q_not_handed_off s t : quiet (HandingOff s t) (On s)
| q_read_not_handed_off p rs al al' s t :
    quiet (Shared p rs (al ++ HandedOff s t :: al'))
          (Shared p rs (Reading (Stream s) :: al ++ al'))
| q_not_unshared l p rs due : quiet (Unsharing l p rs due) (Shared p rs []).

(* A call moves bytes, and each byte that does not move is not touched. It records only events
   that nobody holds, and of the streams' own events only that of the stream. *)
Inductive step : trace -> states -> trace -> states -> Prop :=
| s_call tr st st' c :
    (forall b, move c b (st b) (st' b) \/ (st' b = st b /\ ~ touches c b)) ->
    (forall s n, c = Record s (Pool n) -> spare st n) ->
    (forall s t, c = Record s (Own t) -> s = t) ->
    step tr st (tr ++ [c]) st'
| s_quiet tr st st' : (forall b, quiet (st b) (st' b)) -> step tr st tr st'.

(* Drops are made of these. Of an `On`: m_free (whole device memory), or m_record (page-locked
   memory, which its pool lends again by m_wait of the host; a piece). Of an `Event` of device
   memory, and of the last piece: m_wait of the stream that frees, for each event, then m_free. Of
   an idle buffer: q_bind to that stream, then m_free. Of the last handle of a `Shared`: q_unshare
   to that stream, or to the host for page-locked memory, and then as above. *)

Inductive runs : trace -> states -> Prop :=
| r_start : runs [] (fun _ => Fresh)
| r_step tr st tr' st' : runs tr st -> step tr st tr' st' -> runs tr' st'.

(* ==== The invariant ========================================================================== *)

(* Call i comes before all that line l does from now on. *)
Definition ready tr i l :=
  exists k c, before tr i k /\ at_call tr k c /\ (on c = l \/ on c = Host).
(* Call k, on stream s, is the newest record of event e. *)
Definition newest tr e s k :=
  at_call tr k (Record s e) /\ forall j t, k < j -> ~ at_call tr j (Record t e).
(* Every access to byte b so far has property P. *)
Definition every tr b (P : nat -> Prop) := forall i c, at_call tr i c -> touches c b -> P i.

(* The producer's record k comes before all that a reader does. *)
Definition after tr k a := match a with
  | Reading l => ready tr k l
  | Ended s => ready tr k (Stream s)
  | Behind n => exists t j, newest tr (Pool n) t j /\ before tr k j
  | HandedOff s _ => exists j, at_call tr j (Record s (Own s)) /\ before tr k j
  end.

(* Access i comes before the producer's record k or the newest record of an event of `rs`, or it is
   ready for a line that still reads or for the host. *)
Definition known tr k rs (al : list reader) i :=
  before tr i k
  \/ (exists t n j, In (t, n) rs /\ newest tr (Pool n) t j /\ before tr i j)
  \/ (exists l, In (Reading l) al /\ ready tr i l)
  \/ ready tr i Host.

Definition shared_inv tr b p rs al := exists s k,
  newest tr (Pool p) s k
  /\ (forall i c, at_call tr i c -> writes c b -> before tr i k)
  /\ (forall a, In a al -> after tr k a)
  /\ (forall t n, In (t, n) rs -> exists j, newest tr (Pool n) t j)
  /\ every tr b (known tr k rs al).

Definition inv tr b x := match x with
  | Fresh => every tr b (fun _ => False)
  | Freed => exists l bs k, at_call tr k (Free l bs) /\ In b bs
      /\ (forall j m ds, k < j -> In b ds -> ~ at_call tr j (Free m ds))
      /\ every tr b (fun i => before tr i k)
  | Idle => every tr b (fun i => ready tr i Host)
  | On s => every tr b (fun i => ready tr i (Stream s))
  | InTransit n => exists s k, newest tr (Pool n) s k /\ every tr b (fun i => before tr i k)
  | HandingOff s _ => exists k,
      at_call tr k (Record s (Own s)) /\ every tr b (fun i => before tr i k)
  | Shared p rs al => shared_inv tr b p rs al
  | Unsharing l p rs due => shared_inv tr b p rs []
      /\ (forall r, In r due -> In r rs)
      /\ (forall t n, In (t, n) rs ->
            In (t, n) due \/ exists j, newest tr (Pool n) t j /\ ready tr j l)
  | Forgotten => True
  end.

(* Whether the memory of a state is lent; nobody knows of a forgotten one. *)
Definition lent_as x (now : bool) := match x with
  | Fresh => now = false | Freed => now = false | Forgotten => True | _ => now = true end.

Definition good tr st :=
  race_free tr /\ (forall b, inv tr b (st b))
  /\ (forall k s t, at_call tr k (Record s (Own t)) -> s = t).

(* ==== Longer traces keep what was ============================================================ *)

Lemma at_old tr x i c : at_call tr i c -> at_call (tr ++ x) i c.
Proof.
  unfold at_call; intros H. rewrite nth_error_app1; auto.
  apply nth_error_Some; congruence.
Qed.

Lemma at_lt tr i c : at_call tr i c -> i < length tr.
Proof. unfold at_call; intros H. apply nth_error_Some; congruence. Qed.

Lemma at_split tr c i d : at_call (tr ++ [c]) i d -> at_call tr i d \/ (i = length tr /\ d = c).
Proof.
  unfold at_call; intros H. destruct (Nat.lt_ge_cases i (length tr)) as [L | G].
  - rewrite nth_error_app1 in H; auto.
  - rewrite nth_error_app2 in H; auto. destruct (i - length tr) as [| m] eqn:E.
    + simpl in H. right; split; [lia | congruence].
    + simpl in H. destruct m; discriminate.
Qed.

Lemma at_new tr c : at_call (tr ++ [c]) (length tr) c.
Proof. unfold at_call. rewrite nth_error_app2, Nat.sub_diag; auto. Qed.

Lemma at_back tr c i d : at_call (tr ++ [c]) i d -> i < length tr -> at_call tr i d.
Proof. intros H L. apply at_split in H as [H | [E _]]; auto; lia. Qed.

Lemma edge_lt tr i j : edge tr i j -> j < length tr.
Proof. intros []; eapply at_lt; eauto. Qed.

Lemma edge_old tr c i j : edge tr i j -> edge (tr ++ [c]) i j.
Proof.
  intros H. pose proof (edge_lt _ _ _ H) as L. destruct H.
  - eapply same_line; eauto using at_old.
  - eapply by_host; eauto using at_old.
  - eapply waited; eauto using at_old. intros k t A B C. apply at_back in C; [| lia].
    eapply H2; eauto.
  - eapply memory; eauto using at_old. intros k r ds A B D C.
    apply at_back in C; [| lia]. eapply H4; eauto.
Qed.

Lemma before_old tr c i j : before tr i j -> before (tr ++ [c]) i j.
Proof. induction 1; eauto using before_refl, before_step, edge_old. Qed.

Lemma before_trans tr i j k : before tr i j -> before tr j k -> before tr i k.
Proof. intros A B. induction B; eauto using before_step. Qed.

Lemma ready_old tr c i l : ready tr i l -> ready (tr ++ [c]) i l.
Proof. intros (k & d & A & B & C). exists k, d. eauto using before_old, at_old. Qed.

Lemma newest_old tr c e s k : newest tr e s k -> (forall t, c <> Record t e) ->
  newest (tr ++ [c]) e s k.
Proof.
  intros [A B] N. split; [eauto using at_old |]. intros j t L C.
  apply at_split in C as [C | [_ E]]; [eapply B; eauto | eapply N; eauto].
Qed.

(* A call that is ready for the line of a new call comes before the new one. *)
Lemma ready_new tr c i l : ready tr i l -> on c = l -> before (tr ++ [c]) i (length tr).
Proof.
  intros (k & d & A & B & C) E. pose proof (at_lt _ _ _ B).
  eapply before_step; [apply before_old; eauto |].
  destruct C; [eapply same_line | eapply by_host]; eauto using at_old, at_new; congruence.
Qed.

Lemma new_ready tr c i l : before (tr ++ [c]) i (length tr) -> on c = l -> ready (tr ++ [c]) i l.
Proof. intros H E. exists (length tr), c. eauto using at_new. Qed.

Lemma host_ready tr i l : ready tr i Host -> ready tr i l.
Proof. intros (k & c & A & B & C). exists k, c. intuition. Qed.

(* The newest record comes before a wait for it. *)
Lemma wait_new tr e s k l : newest tr e s k -> before (tr ++ [Wait l e]) k (length tr).
Proof.
  intros [A B]. eapply before_step; [apply before_refl |]. pose proof (at_lt _ _ _ A).
  eapply waited; eauto using at_old, at_new. intros j t L M C.
  apply at_back in C; [| lia]. eapply B; eauto.
Qed.

(* An event that was recorded has a newest record. *)
Lemma newest_exists tr e s k : at_call tr k (Record s e) -> exists t j, k <= j /\ newest tr e t j.
Proof.
  remember (length tr - k) as d eqn:D. revert s k D. induction d as [d IH] using lt_wf_ind.
    intros s k D A.
  assert (Hdec : (exists j t, k < j /\ at_call tr j (Record t e)) \/ forall j t, k < j ->
    ~ at_call tr j (Record t e)).
  { assert (G : forall m, (exists j t, k < j /\ j < m /\ at_call tr j (Record t e))
    \/ forall j t, k < j -> j < m -> ~ at_call tr j (Record t e)).
    { induction m as [| m [(j & t & P & Q & R) | N]].
      - right; intros; lia.
      - left; exists j, t; repeat split; auto; lia.
      - destruct (Nat.lt_ge_cases k m) as [L | L].
        + destruct (nth_error tr m) as [c |] eqn:E.
          * assert (Hc : (exists t, c = Record t e) \/ forall t, c <> Record t e).
            { destruct c; try (right; congruence).
              assert (Ed : {e0 = e} + {e0 <> e}) by (repeat decide equality).
              destruct Ed; [left; eexists; subst; eauto | right; congruence]. }
            destruct Hc as [[t ->] | Hc].
            -- left; exists m, t; repeat split; auto; lia.
            -- right; intros j t P Q R. destruct (Nat.eq_dec j m) as [-> | Ne];
               [unfold at_call in R; rewrite E in R; injection R; apply Hc | eapply N; eauto; lia].
          * right; intros j t P Q R. destruct (Nat.eq_dec j m) as [-> | Ne]; [unfold at_call in R;
            congruence | eapply N; eauto; lia].
        + right; intros; lia. }
    destruct (G (length tr)) as [(j & t & P & Q & R) | N]; [left; eauto |].
    right; intros j t P R. eapply N; eauto using at_lt. }
  destruct Hdec as [(j & t & L & R) | N].
  - pose proof (at_lt _ _ _ R).
    destruct (IH (length tr - j)) with (s := t) (k := j) as (u & m & P & Q); auto; try lia.
    exists u, m; split; auto; lia.
  - exists s, k. repeat split; auto.
Qed.

(* A record is the newest one of its event at once. *)
Lemma newest_new tr s e : newest (tr ++ [Record s e]) e s (length tr).
Proof.
  split; [apply at_new |]. intros j t L A. apply at_lt in A.
  rewrite app_length in A; simpl in A; lia.
Qed.

Lemma wait_ready tr e s k l i : newest tr e s k -> before tr i k -> ready (tr ++ [Wait l e]) i l.
Proof.
  intros A B. apply new_ready; auto.
  eapply before_trans; [apply before_old; eauto | eapply wait_new; eauto].
Qed.

Lemma record_ready tr s e k : at_call tr k (Record s e) -> ready tr k (Stream s).
Proof. intros A. exists k, (Record s e). split; [apply before_refl | auto]. Qed.

Lemma ready_from tr i k l : before tr i k -> ready tr k l -> ready tr i l.
Proof. intros H (j & c & A & B). exists j, c. split; auto. eapply before_trans; eauto. Qed.

Lemma writes_touch c b : writes c b -> touches c b.
Proof. destruct c; simpl; tauto. Qed.

Lemma every_new tr c b (P Q : nat -> Prop) :
  every tr b P -> (forall i, P i -> Q i) -> (touches c b -> Q (length tr)) -> every (tr ++ [c]) b Q.
Proof. intros H I N i d A T. apply at_split in A as [A | [-> ->]]; eauto. Qed.

(* ==== One byte =============================================================================== *)

(* The call takes no event that the state holds. *)
Definition spares c x := forall s n, c = Record s (Pool n) -> ~ holds x n.

Lemma after_old tr c k a : (forall s n, c = Record s (Pool n) -> a <> Behind n) -> after tr k a ->
  after (tr ++ [c]) k a.
Proof.
  intros F H. destruct a as [l | s | n | s t]; simpl in *; auto using ready_old.
  - destruct H as (t & j & A & B). exists t, j. split; [| apply before_old; auto].
    apply newest_old; auto.
    intros u E. eapply F; eauto.
  - destruct H as (j & A & B). exists j. split; [apply at_old | apply before_old]; auto.
Qed.

Lemma shared_old tr c b p rs al :
  ~ writes c b -> (touches c b -> In (Reading (on c)) al) -> spares c (Shared p rs al) ->
  shared_inv tr b p rs al -> shared_inv (tr ++ [c]) b p rs al.
Proof.
  intros N N' F (s & k & A & W & R & E & T). exists s, k.
  assert (Fp : forall t, c <> Record t (Pool p)) by (intros t X; eapply F; simpl; eauto).
  assert (Fn : forall t n, In (t, n) rs -> forall u, c <> Record u (Pool n)) by (intros t n H u X;
    eapply F; simpl; eauto).
  split; [apply newest_old; auto |]. split; [| split; [| split]].
  - intros i d At Wr. apply at_split in At as [At | [_ ->]]; [eauto using before_old | tauto].
  - intros a H. apply after_old; auto. intros t n X ->. eapply F; simpl; eauto.
  - intros t n H. destruct (E t n H) as [j J]. exists j. apply newest_old; eauto.
  - intros i d At Th. apply at_split in At as [At | [-> ->]].
    2: { right; right; left. exists (on c). split; auto. apply new_ready; auto using before_refl. }
    destruct (T i d At Th) as [H | [(t & n & j & H & J & K) | [(l & H & K) | H]]].
    + left; eauto using before_old.
    + right; left; exists t, n, j.
      split; [auto | split; [apply newest_old; eauto | apply before_old; auto]].
    + right; right; left; eauto using ready_old.
    + right; right; right; eauto using ready_old.
Qed.

(* A call that does not touch the byte keeps its invariant. *)
Lemma inv_old tr c b x : ~ touches c b -> spares c x -> inv tr b x -> inv (tr ++ [c]) b x.
Proof.
  intros N F H.
  assert (Every_old : forall P Q : nat -> Prop, (forall i, P i -> Q i) -> every tr b P ->
    every (tr ++ [c]) b Q).
  { intros P Q I T. eapply every_new; eauto. tauto. }
  destruct x as [| | | | n | s t | p rs al | l p rs due |]; simpl in *; auto.
  - eapply Every_old; [| exact H]; auto.
  - destruct H as (s & bs & k & A & B & L & T). exists s, bs, k.
    split; [apply at_old; auto | split; [auto | split]].
    + intros j t ds K D X. apply at_split in X as [X | [_ E]]; [eapply L; eauto |].
      subst c; simpl in N; tauto.
    + eapply Every_old; [| exact T]. intros i Hi; apply before_old; exact Hi.
  - eapply Every_old; [| exact H]. intros i Hi; apply ready_old; exact Hi.
  - eapply Every_old; [| exact H]. intros i Hi; apply ready_old; exact Hi.
  - destruct H as (s & k & A & T). exists s, k. split.
    + apply newest_old; auto. intros t E. eapply F; simpl; eauto.
    + eapply Every_old; [| exact T]. intros i Hi; apply before_old; exact Hi.
  - destruct H as (k & A & T). exists k. split; [apply at_old; auto |].
    eapply Every_old; [| exact T]. intros i Hi; apply before_old; exact Hi.
  - eapply shared_old; [| | | exact H]; auto; [intros W; apply writes_touch in W |]; tauto.
  - destruct H as (J & L & E). split; [| split; [exact L |]].
    + eapply shared_old; [| | | exact J]; [intros W; apply writes_touch in W | |]; try tauto.
      intros s n X Y. eapply F; eauto. simpl in *. tauto.
    + intros t n X. destruct (E t n X) as [Y | (j & Y & R)]; [auto | right].
      exists j. split; [| apply ready_old; auto].
      apply newest_old; auto. intros u Z. eapply F; simpl; eauto.
Qed.

(* Readers may come that are after the producer, and those may go that do not read. *)
Lemma shared_more tr b p rs al al' :
  shared_inv tr b p rs al -> (forall l, In (Reading l) al -> In (Reading l) al' \/ l = Host) ->
  (forall s k, newest tr (Pool p) s k -> (forall a, In a al -> after tr k a) ->
    forall a, In a al' -> after tr k a) ->
  shared_inv tr b p rs al'.
Proof.
  intros (s & k & A & W & R & E & T) K M. exists s, k.
  split; [auto | split; [auto | split; [eauto | split; [auto |]]]].
  intros i c At Th. destruct (T i c At Th) as [H | [H | [(l & H & J) | H]]]; unfold known; auto.
  destruct (K l H) as [X | ->]; eauto 8.
Qed.

(* The lines that read before a step read after it. *)
Ltac readers_stay := intros l H; left; apply in_app_iff in H; simpl in *; rewrite in_app_iff;
  intuition discriminate.
(* An entry of the list that a step does not change is in the list before and after it. *)
Ltac entry_stays H := apply in_app_iff in H; apply in_app_iff; simpl; tauto.

Lemma inv_quiet tr b x x' : quiet x x' -> inv tr b x -> inv tr b x'.
Proof.
  intros Q I.
  destruct Q as [x | s | x | p rs al al' s | p rs al al' a N | l p rs | s t | p rs al al' s t
    | l p rs due]; simpl in *; auto.
  - intros i d A T. apply host_ready. eauto.
  - eapply shared_more; [exact I | |].
    + readers_stay.
    + intros u k A R a [<- | H]; [apply (R (Ended s)), in_app_iff; simpl; auto |].
      apply R; entry_stays H.
  - eapply shared_more; [exact I | |].
    + intros l H. apply in_app_iff in H. simpl in H. rewrite in_app_iff.
      destruct H as [H | [-> | H]]; auto.
      destruct l as [| s]; auto. exfalso. eapply N; eauto.
    + intros u k A R d H. apply R; entry_stays H.
  - destruct I as (k & A & T). intros i d Ai Ti.
    eapply ready_from; [eapply T; eauto | eapply record_ready; eauto].
  - eapply shared_more; [exact I | |].
    + readers_stay.
    + intros u k A R a [<- | H].
      * destruct (R (HandedOff s t)) as (j & B & K); [apply in_app_iff; simpl; auto |].
        eapply ready_from; [exact K | eapply record_ready; eauto].
      * apply R; entry_stays H.
  - apply I.
Qed.

Lemma inv_of_line tr b l : inv tr b (of_line l) <-> every tr b (fun i => ready tr i l).
Proof. destruct l; reflexivity. Qed.

Lemma newest_unique tr e s t j k : newest tr e s j -> newest tr e t k -> j = k.
Proof.
  intros [A B] [C D]. destruct (lt_eq_lt_dec j k) as [[L | E] | L]; auto; exfalso.
  - eapply B; eauto.
  - eapply D; eauto.
Qed.

(* A call that is ready for the line of the last call comes before that. *)
Lemma last_ready tr c k l : ready (tr ++ [c]) k l -> on c = l -> before (tr ++ [c]) k (length tr).
Proof.
  intros (j & d & H & A & O) E. destruct (at_split _ _ _ _ A) as [B | [-> _]]; auto.
  pose proof (at_lt _ _ _ B). eapply before_step; [exact H |].
  destruct O; [eapply same_line | eapply by_host]; eauto using at_new; congruence.
Qed.

Lemma last_wait tr l e s j k : newest (tr ++ [Wait l e]) e s j -> before (tr ++ [Wait l e]) k j ->
  before (tr ++ [Wait l e]) k (length tr).
Proof.
  intros [A N] H.
  destruct (at_split _ _ _ _ A) as [B | [_ B]]; [| discriminate]. pose proof (at_lt _ _ _ B).
  eapply before_step; [exact H |]. eapply waited; eauto using at_new.
Qed.

(* The newest record of a stream's own event comes after every record of it. *)
Lemma last_own tr l s j k :
  (forall k s t, at_call tr k (Record s (Own t)) -> s = t) ->
    at_call (tr ++ [Wait l (Own s)]) j (Record s (Own s)) ->
  before (tr ++ [Wait l (Own s)]) k j -> before (tr ++ [Wait l (Own s)]) k (length tr).
Proof.
  intros Hown A H. destruct (newest_exists _ _ _ _ A) as (u & m & L & N).
  assert (u = s). { destruct N as [B _]. apply at_split in B as [B | [_ B]]; [eapply Hown;
    eauto | discriminate]. }
  subst u. eapply last_wait; [exact N |]. destruct (Nat.eq_dec j m) as [-> | Ne]; auto.
  eapply before_step; [exact H |]. eapply same_line; [lia | exact A | apply N | auto].
Qed.

Section Move.
  Variables (tr : trace) (c : call) (b : nat) (x x' : state).
  Hypothesis M : move c b x x'.
  Hypothesis I : inv tr b x.
  Hypothesis F : spares c x.
  Hypothesis Hown : forall k s t, at_call tr k (Record s (Own t)) -> s = t.

  (* If the call is an access, the accesses that it conflicts with come before it. *)
  Lemma move_ordered i d : touches c b -> at_call tr i d -> touches d b ->
    writes d b \/ writes c b -> before (tr ++ [c]) i (length tr).
  Proof.
    intros Tc A Td W. destruct M; subst c; simpl in Tc; try tauto.
    - destruct H1 as [-> | ->]; simpl in I; [destruct (I i d A Td) |].
      destruct I as (r & cs & k & B & C & L & T).
      eapply before_step; [apply before_old; eapply T; eauto |].
      eapply memory; eauto using at_old, at_new, at_lt. intros j u ds P Q D R.
      apply at_back in R; auto. eapply L; eauto.
    - apply inv_of_line in I. eapply ready_new; [eapply I; eauto | auto].
    - apply inv_of_line in I. eapply ready_new; [eapply I; eauto | auto].
    - simpl in W. destruct W as [W | W]; [| tauto]. destruct I as (s & k & _ & Wr & R & _).
      eapply ready_new; [eapply ready_from; [eapply Wr; eauto | apply (R _ H1)] | auto].
  Qed.

  Lemma move_inv : inv (tr ++ [c]) b x'.
  Proof.
    assert (Record_all : forall s, on c = Stream s -> ~ touches c b ->
      every tr b (fun i => ready tr i (Stream s)) ->
        every (tr ++ [c]) b (fun i => before (tr ++ [c]) i (length tr))).
    { intros s E N T. eapply every_new; [exact T | intros i Hi; eapply ready_new;
      [exact Hi | exact E] | tauto]. }
    assert (Sh : forall p rs al, x = Shared p rs al -> ~ writes c b -> (touches c b ->
      In (Reading (on c)) al) ->
        shared_inv tr b p rs al -> shared_inv (tr ++ [c]) b p rs al).
    { intros p rs al X N N' J. eapply shared_old; [auto | auto | rewrite <- X; exact F | exact J]. }
    pose proof (fun T i d A D W => move_ordered i d T A D W) as Ord.
    destruct M; subst c; simpl.
    - (* m_alloc *)
      apply inv_of_line. intros i d A T. apply new_ready; auto.
      apply at_split in A as [A | [-> _]]; [| apply before_refl]. eapply Ord; simpl; eauto.
    - (* m_use *)
      apply inv_of_line. apply inv_of_line in I. eapply every_new; [exact I | intros;
        apply ready_old; auto | intros; apply new_ready; auto using before_refl].
    - (* m_free *)
      exists l, bs, (length tr). split; [apply at_new | split; [auto | split]].
      + intros j t ds L D A. apply at_lt in A. rewrite app_length in A; simpl in A; lia.
      + intros i d A T. apply at_split in A as [A | [-> _]]; [| apply before_refl].
        eapply Ord; simpl; eauto.
    - (* m_record *) exists s, (length tr). split; [apply newest_new | eapply Record_all; simpl;
      eauto].
    - (* m_wait *)
      apply inv_of_line. destruct I as (s & k & A & T).
      eapply every_new; [exact T | | simpl; tauto].
      intros i Hi. eapply wait_ready; [exact A | exact Hi].
    - (* m_hand_off *) exists (length tr). split; [apply at_new | eapply Record_all; simpl; eauto].
    - (* m_handed_off *) destruct I as (k & A & T). eapply every_new; [exact T | | simpl; tauto].
      intros i Hi. apply new_ready; auto.
      eapply last_own; [exact Hown | apply at_old; exact A | apply before_old; exact Hi].
    - (* m_share *) assert (B := Record_all s eq_refl (fun f => f) I). exists s, (length tr). split;
      [apply newest_new |].
      split; [| split; [simpl; tauto | split; [simpl; tauto |]]].
      + intros i d A W. eapply B; eauto using writes_touch.
      + intros i d A T. left. eapply B; eauto.
    - (* m_reading *)
      eapply shared_more; [eapply Sh; simpl; eauto; tauto | simpl;
        auto |]. intros s k A R a [<- | H]; auto.
      apply new_ready; auto. eapply last_wait; [exact A | apply before_refl].
    - (* m_read *) eapply Sh; simpl; eauto.
    - (* m_end_read *)
      assert (Fp : forall m, holds (Shared p rs (al ++ Reading (Stream s) :: al')) m ->
        m <> n) by (intros m H ->; eapply F; eauto).
      simpl in Fp. destruct I as (s0 & k & A & W & R & N & T).
      exists s0, k. split; [| split; [| split; [| split]]].
      + apply newest_old; auto. intros t X. injection X as _ X. eapply Fp; eauto.
      + intros i d Ai Wi.
        apply at_split in Ai as [Ai | [_ ->]]; [eauto using before_old | simpl in Wi; tauto].
      + intros a [<- | L].
        * apply (ready_old _ _ _ (Stream s)), (R (Reading (Stream s))), in_app_iff. simpl; auto.
        * assert (L' : In a (al ++ Reading (Stream s) :: al')) by (apply in_app_iff in L;
          apply in_app_iff; simpl; tauto).
          apply after_old; auto. intros t m X ->. injection X as _ X.
          eapply Fp; [| symmetry; exact X]. auto.
      + intros t m [X | X].
        * injection X as <- <-. exists (length tr). apply newest_new.
        * apply filter_In in X as [X _]. destruct (N t m X) as [j J]. exists j.
          apply newest_old; auto.
          intros u Y. injection Y as _ Y. eapply Fp; [right; left; exists t; exact X | auto].
      + assert (New : forall i, ready tr i (Stream s) ->
        exists t m j, In (t, m) (keep_newest s n rs)
          /\ newest (tr ++ [Record s (Pool n)]) (Pool m) t j
            /\ before (tr ++ [Record s (Pool n)]) i j).
        { intros i Hi. exists s, n, (length tr). split; [left; auto | split;
          [apply newest_new | eapply ready_new; eauto]]. }
        eapply every_new; [exact T | | simpl; tauto].
        intros i [X | [(t & m & j & X & J & K) | [(l & X & K) | X]]].
        * left; apply before_old; auto.
        * right; left. destruct (Nat.eq_dec t s) as [-> | Ne].
          -- apply New. eapply ready_from; eauto. eapply record_ready. apply J.
          -- exists t, m, j. split; [| split; [| apply before_old; auto]].
             ++ right. apply filter_In. split; auto. simpl.
                apply Bool.negb_true_iff, Nat.eqb_neq; auto.
             ++ apply newest_old; auto. intros u Y. injection Y as _ Y.
                eapply Fp; [right; left; exists t; exact X | auto].
        * assert (D : l = Stream s \/ In (Reading l) (al ++ al')).
          { apply in_app_iff in X. simpl in X. rewrite in_app_iff. destruct X as [X | [X | X]];
            auto. injection X; auto. }
          destruct D as [-> | D]; [right; left; auto |].
          right; right; left. exists l. split; [right; auto | apply ready_old; auto].
        * right; right; right. apply ready_old; auto.
    - (* m_record_read *)
      eapply shared_more; [eapply Sh; simpl; eauto; tauto | simpl;
        auto |]. intros u k A R a [<- | H]; auto.
      exists s, (length tr). split; [apply newest_new |].
      eapply last_ready; [apply (R _ H0) | auto].
    - (* m_wait_read *)
      eapply shared_more; [eapply Sh; simpl; eauto; tauto | |].
      + readers_stay.
      + intros u k A R a [<- | H].
        * destruct (R (Behind n)) as (v & j & N & K); [apply in_app_iff; simpl; auto |].
          apply new_ready; auto. eapply last_wait; eauto.
        * apply R; entry_stays H.
    - (* m_read_hand_off *)
      eapply shared_more; [eapply Sh; simpl; eauto; tauto | |].
      + readers_stay.
      + intros u k A R a [<- | H].
        * exists (length tr). split; [apply at_new |].
          eapply last_ready; [apply (R (Ended s)), in_app_iff; simpl; auto | auto].
        * apply R; entry_stays H.
    - (* m_read_handed_off *)
      eapply shared_more; [eapply Sh; simpl; eauto; tauto | |].
      + readers_stay.
      + intros u k A R a [<- | H].
        * destruct (R (HandedOff s t)) as (j & N & K); [apply in_app_iff; simpl; auto |].
          apply new_ready; auto. eapply last_own; eauto.
        * apply R; entry_stays H.
    - (* m_unshare *)
      destruct I as (J & L & E). split; [| split].
      + eapply shared_old; [| | | exact J]; simpl; try tauto. intros s0 m X; discriminate.
      + intros r X. apply L. right; auto.
      + intros t m X. destruct (E t m X) as [[Y | Y] | (j & Y & R)]; [| auto |].
        * injection Y as <- <-. right. destruct J as (s0 & k & _ & _ & _ & N & _).
          destruct (N s n X) as [j J]. exists j. split; [apply newest_old; auto; discriminate |].
          eapply wait_ready; [exact J | apply before_refl].
        * right. exists j. split; [apply newest_old; auto; discriminate | apply ready_old; auto].
    - (* m_unshared *)
      destruct I as ((s & k & A & _ & _ & _ & T) & _ & E).
      apply inv_of_line. eapply every_new; [exact T | | simpl; tauto].
      intros i [X | [(u & m & j & X & J & K) | [(m & [] & K) | X]]].
      + eapply wait_ready; eauto.
      + destruct (E u m X) as [[] | (j' & J' & R)]. apply ready_old.
        rewrite (newest_unique _ _ _ _ _ _ J J') in K. eapply ready_from; eauto.
      + apply host_ready, ready_old; auto.
  Qed.
End Move.

(* ==== All bytes ============================================================================== *)

Lemma step_good tr st tr' st' : step tr st tr' st' -> good tr st -> good tr' st'.
Proof.
  intros S (R & I & Hown). destruct S as [tr st st' c M Sp Hd | tr st st' Q].
  - assert (F : forall b, spares c (st b)) by (intros b s n E; apply (Sp _ _ E)).
    split; [| split].
    + intros i j b d e L A B T U W.
      apply at_split in A as [A | [-> ->]]; apply at_split in B as [B | [-> ->]].
      * apply before_old. eapply R; eauto.
      * destruct (M b) as [Mb | [_ N]]; [| tauto]. eapply move_ordered; eauto.
      * apply at_lt in B; lia.
      * lia.
    + intros b. destruct (M b) as [Mb | [E N]].
      * eapply move_inv; eauto.
      * rewrite E. apply inv_old; auto.
    + intros k s t A. apply at_split in A as [A | [_ E]]; eauto.
  - split; [auto | split; auto]. intros b. eapply inv_quiet; eauto.
Qed.

Lemma good_start : good [] (fun _ => Fresh).
Proof.
  split; [| split].
  - intros i j b c d _ A. unfold at_call in A. destruct i; discriminate.
  - intros b i c A. unfold at_call in A. destruct i; discriminate.
  - intros k s t A. unfold at_call in A. destruct k; discriminate.
Qed.

(* Every two accesses to a byte of which one writes it are ordered by streams, records and waits,
   the host's own order, and the allocator. A free and an allocation count as writes, so no byte is
   lent again before its last access. *)
Theorem no_races : forall tr st, runs tr st -> race_free tr.
Proof.
  intros tr st H.
  assert (G : good tr st) by (induction H; eauto using good_start, step_good). apply G.
Qed.

(* ==== Lifetimes ============================================================================== *)

Lemma lent_new tr c b : lent (tr ++ [c]) b = lend b (lent tr b) c.
Proof. unfold lent. rewrite fold_left_app. reflexivity. Qed.

Lemma lend_other b now c : ~ touches c b -> lend b now c = now.
Proof. destruct c; simpl; auto; destruct (in_dec Nat.eq_dec b bs); tauto. Qed.

Lemma move_lent c b x x' now : move c b x x' -> lent_as x now ->
  lent_as x' (lend b now c)
  /\ (touches c b -> now = match c with Alloc _ _ => false | _ => true end).
Proof.
  assert (Of : forall l now, lent_as (of_line l) now <-> now = true) by (intros []; simpl; tauto).
  intros M H. destruct M; subst c; try apply Of in H; simpl; try (rewrite Of); auto; try tauto.
  - destruct (in_dec Nat.eq_dec b bs); [| tauto]. split; [reflexivity |].
    destruct H2 as [-> | ->]; auto.
  - destruct (in_dec Nat.eq_dec b bs); tauto.
Qed.

Lemma quiet_lent x x' now : quiet x x' -> lent_as x now -> lent_as x' now.
Proof. destruct 1; simpl; auto. Qed.

(* Memory is used and given back only while it is lent, and it is lent to one owner at a time. *)
Theorem no_use_after_free : forall tr st, runs tr st -> lifetimes tr.
Proof.
  assert (G : forall tr st, runs tr st -> (forall b, lent_as (st b) (lent tr b)) /\ lifetimes tr).
  { induction 1 as [| tr st tr' st' R [L A] S].
    - split; [simpl; auto |]. intros j c b X. unfold at_call in X. destruct j; discriminate.
    - destruct S as [tr st st' c M _ _ | tr st st' Q].
      + split.
        * intros b. rewrite lent_new. destruct (M b) as [Mb | [-> N]].
          -- eapply move_lent; eauto.
          -- rewrite lend_other; auto.
        * intros j d b X T. apply at_split in X as [X | [-> ->]].
          -- rewrite firstn_app, (proj2 (Nat.sub_0_le j _)), app_nil_r;
             eauto using at_lt, Nat.lt_le_incl.
          -- rewrite firstn_app, Nat.sub_diag, firstn_all, app_nil_r.
             destruct (M b) as [Mb | [_ N]]; [eapply move_lent; eauto | tauto].
      + split; auto. intros b. eapply quiet_lent; eauto. }
  intros tr st H. apply (G tr st H).
Qed.

(* ==== The definitions say something ========================================================== *)

(* Byte 7 is allocated on stream 0 and read on stream 1, and nothing is in between: a race. *)
Example a_race : ~ race_free [Alloc (Stream 0) [7]; Use (Stream 1) [7] []].
Proof.
  intros R. assert (H : before [Alloc (Stream 0) [7]; Use (Stream 1) [7] []] 0 1).
  { eapply (R 0 1 7); try reflexivity; simpl; auto. }
  inversion H as [| j k _ E]; subst k.
  destruct E as [c d L A B | c d L A B | s l e L A B | l m bs cs b L A B]; unfold at_call in *.
  - destruct j as [| j]; [| lia]. simpl in *. injection A as <-. injection B as <-. discriminate.
  - destruct j as [| j]; [| lia]. simpl in *. injection A as <-. discriminate.
  - discriminate.
  - discriminate.
Qed.

(* A stream that uses a byte after its free has no race, but breaks the byte's lifetime. *)
Example a_use_after_free : ~ lifetimes [Alloc (Stream 0) [7]; Free (Stream 0) [7];
  Use (Stream 0) [7] []].
Proof. intros L. specialize (L 2 _ 7 eq_refl). simpl in L. discriminate L. auto. Qed.

(* Programs of one byte, for the examples below. *)
Definition only (b : nat) x : states := fun y => if y =? b then x else Fresh.

Lemma only_spare b x n : ~ holds x n -> spare (only b x) n.
Proof. intros H y. unfold only. destruct (y =? b); simpl; auto. Qed.

Lemma calls tr x c x' :
  runs tr (only 7 x) -> move c 7 x x' -> (forall b, b <> 7 -> ~ touches c b) ->
  (forall s n, c = Record s (Pool n) -> ~ holds x n) ->
  (forall s t, c = Record s (Own t) -> s = t) -> runs (tr ++ [c]) (only 7 x').
Proof.
  intros R M T P H. eapply r_step; [exact R | apply s_call; auto].
  - intros b. unfold only. destruct (Nat.eqb_spec b 7) as [-> | N]; auto.
  - intros s n E. apply only_spare. eauto.
Qed.

Lemma changes tr x x' : runs tr (only 7 x) -> quiet x x' -> runs tr (only 7 x').
Proof.
  intros R Q. eapply r_step; [exact R | apply s_quiet].
  intros b. unfold only. destruct (b =? 7); auto using q_same.
Qed.

Lemma starts : runs [] (only 7 Fresh).
Proof.
  eapply r_step; [apply r_start | apply s_quiet].
  intros b. unfold only. destruct (b =? 7); apply q_same.
Qed.

Ltac call x rule := eapply (calls _ x);
  [| eapply rule; try reflexivity; simpl; auto
  | simpl; intuition congruence
  | intros s n E; first [discriminate E | injection E as _ <-]; simpl; firstorder discriminate
  | congruence ].

(* With a `hand_off` in between it is a program, so it has no race. *)
Example a_program : runs
  ([] ++ [Alloc (Stream 0) [7]] ++ [Record 0 (Own 0)] ++ [Wait (Stream 1) (Own 0)] ++ [Use (Stream
    1) [7] []])
  (only 7 (On 1)).
Proof.
  repeat rewrite app_assoc.
  call (On 1) (m_use (Use (Stream 1) [7] []) 7 (Stream 1)).
  call (HandingOff 0 1) m_handed_off.
  call (On 0) m_hand_off.
  call Fresh (m_alloc (Alloc (Stream 0) [7]) 7 (Stream 0)).
  apply starts.
Qed.

(* Stream 0 shares a byte, stream 1 reads it, and stream 2 takes it back, writes it and frees it. *)
Example a_shared_program : runs
  ([] ++ [Alloc (Stream 0) [7]] ++ [Record 0 (Pool 0)] ++ [Wait (Stream 1) (Pool 0)]
    ++ [Use (Stream 1) [7] []] ++ [Record 1 (Pool 1)]
    ++ [Wait (Stream 2) (Pool 1)] ++ [Wait (Stream 2) (Pool 0)] ++ [Use (Stream 2) [] [7]] ++ [Free
       (Stream 2) [7]])
  (only 7 Freed).
Proof.
  repeat rewrite app_assoc.
  call (On 2) (m_free (Free (Stream 2) [7]) 7 (Stream 2)).
  call (On 2) (m_use (Use (Stream 2) [] [7]) 7 (Stream 2)).
  call (Unsharing (Stream 2) 0 [(1, 1)] []) (m_unshared (Wait (Stream 2) (Pool 0)) 7 (Stream 2)).
  call (Unsharing (Stream 2) 0 [(1, 1)] [(1, 1)]) m_unshare.
  eapply changes; [| apply q_unshare].
  eapply changes; [| apply (q_drop _ _ [] [] (Ended 1)); discriminate].
  call (Shared 0 [] [Reading (Stream 1)]) (m_end_read (Record 1 (Pool 1)) 7 0 [] [] []).
  call (Shared 0 [] [Reading (Stream 1)]) m_read.
  call (Shared 0 [] []) m_reading.
  call (On 0) m_share.
  call Fresh (m_alloc (Alloc (Stream 0) [7]) 7 (Stream 0)).
  apply starts.
Qed.

(* Coq prints for each theorem that it is closed: it rests on no axiom and on nothing admitted. *)
Print Assumptions no_races.
Print Assumptions no_use_after_free.
