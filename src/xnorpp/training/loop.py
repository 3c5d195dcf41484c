"""The training loop: a recipe, data and a network in, a trained checkpoint out. `start.py` is its door.

Everything is a function of the recipe, the seed and the step: the batches (the loader's contract), the
random numbers of each part of a batch (`seed_for`), the learning rate (`schedule.py`). So a checkpoint
holds weights, the optimiser's tensors and the step, and a run that was killed ends like one that was not.

A batch is taken in world size * `run.accumulate` parts. Part i of a step holds the same images and draws
the same random numbers whichever process computes it, so two processes, and one that accumulates two parts,
do the same arithmetic; only the order of the additions differs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from xnorpp.nn import anneals, calibrate_scales, clip_latent_weights_, set_progress, set_stage
from xnorpp.nn.fused.graph import unfuse
from xnorpp.shipped.accuracy import accuracy_text
from xnorpp.training import identity
from xnorpp.training.accuracy import evaluate
from xnorpp.training.diagnose import NonFiniteLoss, first_bad_layer
from xnorpp.training.distributed import World, average_buffers, mean_over_world, wrap
from xnorpp.training.graph import GraphStep, check_graph
from xnorpp.training.loss_guard import LossGuard
from xnorpp.training.network import fuse
from xnorpp.training.optimizer import make_optimizer, restore_optimizer, set_learning_rate
from xnorpp.training.outcome import Outcome, Position
from xnorpp.training.output_layer import fit_output_layer
from xnorpp.training.recipe.config import Recipe, RecipeError
from xnorpp.training.recipe.schedule import first_stage_steps, learning_rate, total_steps
from xnorpp.training.records.journal import Clock, Journal, time_left
from xnorpp.training.setup import (
    Given,
    build_model,
    make_loaders,
    make_train_check,
    open_data,
    plain_loader,
    statistics_loader,
)
from xnorpp.training.state.checkpoint import (
    FINAL_NAME,
    Checkpoint,
    clear_temporary,
    list_checkpoints,
    newest_checkpoint,
    set_weights,
)
from xnorpp.training.state.initial import initialise
from xnorpp.training.state.lock import one_run
from xnorpp.training.state.restore import check_resumable, stored_recipe
from xnorpp.training.state.resume import (
    check_same_data,
    check_same_network,
    check_same_recipe,
    seed_for,
)
from xnorpp.training.statistics import measure_statistics
from xnorpp.training.teacher import Lesson, load_teacher, missing_teacher
from xnorpp.training.update.average import AveragedWeights
from xnorpp.training.update.gradients import raise_gradients_


class _Run(Outcome):
    """One training run in one process. The methods are its phases, in order."""

    def __init__(
        self, recipe: Recipe, out: Path, world: World, quiet: bool, given: Given | None = None
    ) -> None:
        self.recipe, self.out, self.world, self.quiet = recipe, out, world, quiet
        self.given = given or Given()
        self.at = Position()
        self.facts: dict[str, Any] = {}
        self.skipped: dict[str, str] = {}  # unreadable images, and why
        self.last_saved: Path | None = None
        self.graph: GraphStep | None = None
        # Summed on the device over the last epoch; None in other epochs, or if it was not seen whole.
        self.last_epoch_loss: Tensor | None = None

    def go(
        self, data: str | Path | None, resume: bool, init_from: str | Path | None, download: bool
    ) -> dict[str, Any]:
        with one_run(self.out, active=self.world.leader):
            return self._go(data, resume, init_from, download)

    def _go(
        self, data: str | Path | None, resume: bool, init_from: str | Path | None, download: bool
    ) -> dict[str, Any]:
        self.no_graph = check_graph(self.recipe, self.world.device, self.world.size)
        found = self._find_checkpoint(resume)
        self._build(data, download, init_from, found)
        recipe, world = self.recipe, self.world
        with Journal(
            self.out,
            active=world.leader,
            total_images=self.total * recipe.data.batch_size,
            done_images=self.at.step * recipe.data.batch_size,
            from_step=self.at.step,
            tensorboard=recipe.run.tensorboard,
            quiet=self.quiet,
        ) as journal:
            if found is not None:
                journal.say(
                    f"Resuming {recipe.name} at step {self.at.step} of {self.total} from {found.path}"
                )
            differs = self.facts.get("init_from", {}).get("differs")
            for line in (self._opening(), missing_teacher(recipe), differs, self.fused):
                if line:
                    journal.say(line)
            try:
                self.lesson.prepare(self.config["num_classes"], journal.say)
                self._epochs(journal)
                return self._finish(journal)
            finally:
                unfuse(self.model)  # a user's module runs its own code again
                for loader in (*self.loaders, self.test_loader):
                    loader.close()

    def _find_checkpoint(self, resume: bool) -> Checkpoint | None:
        """The checkpoint to continue from, after refusing to overwrite a run or to continue it with another
        recipe.
        """
        if not resume:
            if list_checkpoints(self.out) or (self.out / FINAL_NAME).exists():
                raise RecipeError(
                    f"`out` (={str(self.out)!r}) already holds a run; pass --resume "
                    "(resume=True in Python) to continue it, or choose another folder."
                )
            return None
        if self.world.leader:
            clear_temporary(self.out)
        found = newest_checkpoint(self.out)
        if found is not None:
            check_same_recipe(self.recipe, stored_recipe(found), self.out)
        elif (self.out / FINAL_NAME).exists():
            raise RecipeError(
                f"`out` (={str(self.out)!r}) holds {FINAL_NAME} and no checkpoint to resume from; move that "
                "file away to train anew, or choose another folder."
            )
        return found

    def _build(
        self,
        data: str | Path | None,
        download: bool,
        init_from: str | Path | None,
        found: Checkpoint | None,
    ) -> None:
        """Data, network, optimiser; restored from `found` if given."""
        recipe, world = self.recipe, self.world
        self.sets = open_data(recipe, data, download=download, world=world, given=self.given)
        self.loaders, self.test_loader = make_loaders(recipe, self.sets, world)
        self.steps_per_epoch = self.loaders[0].steps_per_epoch
        self.total = total_steps(recipe.schedule, self.steps_per_epoch)
        seed_for(recipe.run.seed, "weights")
        self.model, self.config = build_model(recipe, self.sets, self.given)
        if found is not None:
            check_same_network(self.config, found.model_config, self.out)
            check_same_data(
                self.steps_per_epoch, found.meta.get("steps_per_epoch", self.steps_per_epoch), self.out
            )
            set_weights(self.model, found.weights, found.path)
            self.facts = {key: found.meta[key] for key in ("init_from", "calibration") if key in found.meta}
            began = found.meta.get("code")
            if began != identity.code_hash():  # trained by two states of the code, so by neither alone
                self.facts["code"] = f"{began or 'unknown'}+{identity.code_hash()}"
        elif init_from is not None:
            self.facts["init_from"] = initialise(self.model, init_from).to_dict()
        memory_format = torch.channels_last if recipe.run.channels_last else torch.contiguous_format
        self.model.to(device=world.device, memory_format=memory_format)  # type: ignore[call-overload]
        if recipe.model.calibrate and found is None:
            self.facts["calibration"] = self._calibrate()
        if recipe.run.sync_batch_norm and world.device.type == "cuda":  # pragma: cuda only
            self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)  # type: ignore[no-untyped-call]
        self.optimizer = make_optimizer(self.model, recipe.optimizer, world.device)
        self.scaler = torch.amp.GradScaler(world.device.type) if recipe.run.amp == "fp16" else None
        decay = recipe.optimizer.ema_decay
        self.averaged = AveragedWeights(self.model, decay) if decay else None
        if found is not None:
            self._restore(found)
        self.fused = fuse(self.model, recipe.run, world.device)
        compiled: Any = torch.compile(self.model) if recipe.run.compile else self.model
        self.stepped = wrap(compiled, world)
        teacher = None
        if recipe.loss.teacher:
            teacher, self.facts["teacher"] = load_teacher(
                recipe.loss.teacher,
                self.config["num_classes"],
                world.device,
                in_channels=self.config["in_channels"],
            )
            teacher.to(memory_format=memory_format)  # type: ignore[call-overload]
        self.lesson = Lesson(recipe, teacher, self.loaders, cached=self.no_graph is not None)

    def _restore(self, found: Checkpoint) -> None:
        check_resumable(found, self.total, self.model, self.optimizer, scaled=self.scaler is not None)
        restore_optimizer(self.model, self.optimizer, found.optimizer)
        if self.scaler is not None and "scaler" in found.meta:
            self.scaler.load_state_dict(found.meta["scaler"])
        if found.meta["step"] == self.total:
            self.averaged = None  # the last checkpoint's weights are the average
        if self.averaged is not None:
            set_weights(self.averaged.model, found.average, found.path)
        self.last_saved = found.path
        self.at = Position(
            step=found.meta["step"],
            metrics=found.meta["metrics"],
            best=found.meta["best"],
            seconds=found.meta["seconds"],
        )

    def _calibrate(self) -> dict[str, Any]:
        """The scales' start, fitted to the first part of the first batch, which every process takes alike."""
        first = make_loaders(self.recipe, self.sets, dataclasses.replace(self.world, rank=0))[0][0]
        try:
            return calibrate_scales(self.model, next(iter(first.epoch(0)))[0])
        finally:
            first.close()

    def _epochs(self, journal: Journal) -> None:
        """Step by step to the end, evaluating and saving on the way."""
        recipe, run = self.recipe, self.recipe.run
        self.model.train()
        guard = LossGuard(
            self.optimizer,
            self.world.device,
            lazy=self.world.device.type == "cuda" and self.scaler is None,
            end=self._end_at_bad_loss,
        )
        self._prepare_graph(guard, journal)
        first_stage = first_stage_steps(recipe.schedule, self.steps_per_epoch)
        set_stage(self.model, weights_binary=self.at.step >= first_stage)
        annealed = anneals(self.model)
        clock = Clock(recipe.data.batch_size)
        started = time.perf_counter() - self.at.seconds
        while self.at.step < self.total:
            epoch, offset = divmod(self.at.step, self.steps_per_epoch)
            batches = [self.lesson.batches(index, epoch, offset) for index in range(len(self.loaders))]
            for parts in map(list, zip(*batches)):
                step = self.at.step
                if first_stage and step == first_stage:
                    set_stage(self.model, weights_binary=True)
                    self.optimizer.state.clear()
                    if self.graph is not None:
                        self.graph.reset()
                lr = learning_rate(recipe.schedule, recipe.optimizer, step, self.steps_per_epoch)
                set_learning_rate(self.optimizer, lr)
                if annealed:
                    set_progress(self.model, step / self.total)
                loss = self._step(parts, step, guard)
                if self.averaged is not None:
                    self.averaged.update(step)
                if run.eval_train:
                    self._sum_loss(loss, step)
                self.at.step = step + 1
                self.at.seconds = time.perf_counter() - started
                clock.tick()
                ends_epoch = self.at.step % self.steps_per_epoch == 0 or self.at.step == self.total
                journal.advance(recipe.data.batch_size, epoch + 1)
                saves = run.save_steps > 0 and self.at.step % run.save_steps == 0
                if saves or ends_epoch or self.at.step % run.log_steps == 0:
                    guard.check()
                if ends_epoch or self.at.step % run.log_steps == 0:
                    self._log(journal, clock, epoch, lr, float(loss))
                if ends_epoch:
                    break
                if saves:
                    self._save()
            if self.at.step % self.steps_per_epoch and self.at.step < self.total:
                raise RuntimeError(f"The data ended at step {self.at.step}, inside epoch {epoch + 1}")
            self._end_of_epoch(journal, epoch)
            clock.restart()

    def _sum_loss(self, loss: Tensor, step: int) -> None:
        """Add the loss of a step of the last epoch, without waiting for the device."""
        if step == (self.total - 1) // self.steps_per_epoch * self.steps_per_epoch:
            self.last_epoch_loss = torch.zeros((), device=loss.device)
        if self.last_epoch_loss is not None:
            self.last_epoch_loss += loss

    def _prepare_graph(self, guard: LossGuard, journal: Journal) -> None:
        """Steps as a CUDA graph, where the recipe wants it and it is possible."""
        recipe, device = self.recipe, self.world.device
        if self.no_graph is not None:
            if device.type == "cuda":  # pragma: cuda only
                journal.say(f"Steps are launched one by one, not as a CUDA graph: {self.no_graph}.")
            return

        def update(batch: tuple[Tensor, ...], number: Tensor) -> Tensor:
            return self._update([batch], number, guard, lambda index: None)

        self.graph = GraphStep(
            update,
            self.optimizer,
            device,
            recipe.data.batch_size,
            channels_last=recipe.run.channels_last,
            required=recipe.run.cuda_graph == "on",
            say=journal.say,
        )

    def _step(self, parts: list[tuple[Tensor, ...]], step: int, guard: LossGuard) -> Tensor:
        """One step, as a CUDA graph or plainly; the mean loss over the world."""
        if self.graph is None:
            return self._update(parts, step, guard, lambda index: self._seed_part(step, index))
        self._seed_part(step, 0)
        return self.graph(parts[0], step)

    def _update(
        self,
        parts: list[tuple[Tensor, ...]],
        step: int | Tensor,
        guard: LossGuard,
        seed: Callable[[int], None],
    ) -> Tensor:
        """Gradients over all parts, one update; the mean loss over the world."""
        recipe = self.recipe
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.world.device)
        for index, part in enumerate(parts):
            seed(index)
            last = index == len(parts) - 1
            share_gradients = last or self.world.size == 1
            with contextlib.nullcontext() if share_gradients else self.stepped.no_sync():  # type: ignore[operator]
                loss = self.lesson.loss(self.stepped, *part) / len(parts)
                (loss if self.scaler is None else self.scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        total = mean_over_world(total, self.world)
        guard.see(total, step)
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if recipe.optimizer.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.optimizer.clip_norm)
        if recipe.optimizer.scale_gradients:
            raise_gradients_(self.model, recipe.optimizer.scale_gradients)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        clip_latent_weights_(self.model)
        return total

    def _seed_part(self, step: int, index: int) -> None:
        """Part `index` of this process draws the same numbers whichever process computes it."""
        seed_for(self.recipe.run.seed, "part", step, self.world.rank * len(self.loaders) + index)

    def _end_at_bad_loss(self, loss: float, step: int) -> NoReturn:
        """Run the step's parts again, looking at every layer."""
        epoch, offset = divmod(step, self.steps_per_epoch)
        where = "it is finite in this process, so it arose in another one"
        for index in range(len(self.loaders)):
            images, *others = next(iter(self.lesson.batches(index, epoch, offset)))
            self._seed_part(step, index)
            with torch.no_grad():
                bad = not math.isfinite(float(self.lesson.loss(self.model, images, *others)))
            if bad:
                where = first_bad_layer(
                    self.model, images, lambda x, y=others: self.lesson.loss(self.model, x, *y)
                )
                break
        raise NonFiniteLoss(loss, step, epoch + 1, where, self.last_saved)

    def _log(self, journal: Journal, clock: Clock, epoch: int, lr: float, loss: float) -> None:
        journal.advance(0, epoch + 1, loss)
        journal.row(
            "train",
            self.at.step,
            epoch=epoch + 1,
            loss=loss,
            lr=lr,
            images_per_s=round(clock.images_per_second(), 1),
        )

    def _end_of_epoch(self, journal: Journal, epoch: int) -> None:
        """Evaluate where the recipe asks for it, report, save."""
        recipe, last = self.recipe, self.at.step == self.total
        due = (epoch + 1) % recipe.run.eval_epochs == 0 or last
        network = self.model if self.averaged is None else self.averaged.network()
        if last and self.averaged is not None:
            self.model.load_state_dict(network.state_dict())
            network, self.averaged = self.model, None
        if last and recipe.schedule.statistics_batches:
            loader = statistics_loader(recipe, self.sets, self.world, self.loaders[0])
            batches = (images for images, _ in loader.epoch(epoch + 1))
            measure_statistics(self.model, itertools.islice(batches, recipe.schedule.statistics_batches))
        if last and recipe.schedule.output_batches:
            self._fit_output_layer(epoch + 1)
        if due:
            average_buffers(network, self.world)
            observe = journal.evaluating(self.sets.test, self.world.size)
            # In float32, whatever `run.amp` is.
            metrics = evaluate(network, self.test_loader, world=self.world, observe=observe)
            self.at.metrics = {key: metrics[key] for key in ("top1", "top5", "loss")}
            if last and recipe.run.eval_train:
                self.at.metrics.update(self._training_metrics(journal))
            if not self.at.best or metrics["top1"] > self.at.best["top1"]:
                self.at.best = {"top1": metrics["top1"], "epoch": epoch + 1}
                self._save_best(network)
            journal.row("eval", self.at.step, epoch=epoch + 1, **self.at.metrics)
            left = self.at.seconds / self.at.step * (self.total - self.at.step)
            journal.say(
                f"epoch {epoch + 1:>3}/{math.ceil(self.total / self.steps_per_epoch)}  "
                f"{accuracy_text(metrics['top1'], metrics['top5'], self.classes, separator='  ', width=6)}  "
                f"loss {metrics['loss']:.4f}  "
                f"{self.at.step * recipe.data.batch_size / max(self.at.seconds, 1e-9):,.0f} img/s  "
                f"{time_left(left)} left"
            )
        self._name_skipped(journal, {})
        if last or (epoch + 1) % recipe.run.save_epochs == 0:
            self._save()

    def _fit_output_layer(self, epoch: int) -> None:
        """In every process on its share of the images; then the mean over all."""
        recipe, world = self.recipe, self.world
        average_buffers(self.model, world)
        loader = plain_loader(recipe, self.sets, world, self.loaders[0])
        batches = itertools.islice(loader.epoch(epoch), recipe.schedule.output_batches)
        layer = fit_output_layer(self.model, batches, recipe.run.seed)
        with torch.no_grad():
            for one in layer.parameters():
                one.copy_(mean_over_world(one, world))

    def _training_metrics(self, journal: Journal) -> dict[str, float]:
        """`train_top1`, `train_top5`, `train_loss`: the final network in evaluation mode, in float32, on a
        fixed subset of the training images, as many as the test set has, without augmentation
        (`make_train_check`). `last_epoch_loss`: the mean training loss of the last epoch's steps, if this
        process saw all of them.
        """
        loader = make_train_check(self.recipe, self.sets, self.world)
        observe = journal.evaluating(min(self.sets.test, self.sets.train, key=len), self.world.size)
        try:
            metrics = evaluate(self.model, loader, world=self.world, observe=observe)
        finally:
            loader.close()
        found = {f"train_{key}": metrics[key] for key in ("top1", "top5", "loss")}
        if self.last_epoch_loss is not None:
            steps = (self.total - 1) % self.steps_per_epoch + 1
            found["last_epoch_loss"] = float(self.last_epoch_loss) / steps
        return found
