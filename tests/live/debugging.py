"""What tests/live/debugging.sh asks of files that other programs read or write:

    debugging.py prompts FILE            prompts for the runs
    debugging.py tensorboard DIR TAG     TensorBoard's own reader: STEP VALUE of a scalar
    debugging.py trace FILE closed|cut   spans of a trace, by lane; a cut one is mended as viewers do
    debugging.py mlflow URI TAG          MLflow's own client: STEP VALUE of a metric
    debugging.py pt DUMP FILE            one of our dumps as a .pt of Miles, with tensors (needs torch)
    debugging.py hostile DIR             .pt files that run a program when they are unpickled
    debugging.py plant DUMP OUT WHAT     a dump with one thing wrong: reward, token, text, logp
"""
import json
import os
import pickle
import sys
import zipfile


def prompts(path):
    with open(path, "w") as out:
        for i in range(40):
            text = f"{'the number ' * (i % 7)}{i * 37 % 101} and {i * 53 % 89} are"
            out.write(json.dumps({"prompt": text, "label": str(i)}) + "\n")


def tensorboard(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder)
    events.Reload()
    for e in events.Scalars(tag):
        print(e.step, repr(round(e.value, 6)))


def trace(path, state):
    text = open(path).read()
    if state == "cut":
        text = text.rstrip().rstrip(",") + "]"
    events = json.loads(text)
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    print(" ".join(sorted({f"{lanes[e['tid']]}:{e['name']}" for e in events if e["ph"] == "X"})))


def mlflow(uri, tag):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("miles")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED", run.info.status
    assert run.data.params["lr"], run.data.params
    for m in client.get_metric_history(run.info.run_id, tag):
        print(m.step, repr(round(m.value, 6)))


def samples(path):
    lines = [json.loads(line) for line in open(path)]
    return lines[0], lines[1:]


def pt(dump, path):
    import numpy
    import torch

    head, rows = samples(dump)
    for i, row in enumerate(rows):
        row["tokens"] = torch.tensor(row["tokens"]) if i % 2 else row["tokens"]
        row["rollout_log_probs"] = (
            torch.tensor(row["rollout_log_probs"]) if i % 3 else numpy.array(row["rollout_log_probs"]))
        row.setdefault("metadata", {})["numpy"] = numpy.float32(0.5)
        row.pop("reward_reason", None)
    torch.save({"rollout_id": head["rollout_id"], "metadata": {}, "samples": rows}, path)


class Evil:
    def __init__(self, how, mark):
        self.how, self.mark = how, mark

    def __reduce__(self):
        if self.how == "system":
            return os.system, (f"touch {self.mark}",)
        if self.how == "eval":
            return eval, (f"open({self.mark!r}, 'w')",)
        import subprocess
        return subprocess.Popen, (["touch", self.mark],)


def hostile(folder):
    mark = os.path.join(folder, "ran")
    for how in ("system", "eval", "popen"):
        text = pickle.dumps({"rollout_id": 0, "samples": [Evil(how, mark)]})
        with zipfile.ZipFile(os.path.join(folder, f"{how}.pt"), "w") as archive:
            archive.writestr("archive/data.pkl", text)
            archive.writestr("archive/version", "3")
        with open(os.path.join(folder, f"{how}-bare.pt"), "wb") as out:
            out.write(text)


def plant(dump, path, what):
    head, rows = samples(dump)
    row = rows[1]
    if what == "reward":
        row["reward"] = 0.123
    elif what == "token":
        row["tokens"][-1] = 99999999
    elif what == "text":
        row["response"] += " and more"
    else:
        row["rollout_log_probs"][0] -= 0.5
    with open(path, "w") as out:
        for line in [head, *rows]:
            out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
