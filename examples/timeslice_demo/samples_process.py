"""The demo's side of the sampling process: start it, and take the samples when the run is over."""

import subprocess
import threading

from timeslice_demo.nvml_samples import Sample


class NvmlSampling:
    """Samples from now until `stop`.

    Args:
        process: nvml_samples, running wherever the devices are, with pipes for stdin and stdout.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._samples: list[Sample] = []
        self._process = process
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._read, name="NVML samples", daemon=True)
        self._thread.start()
        self._first.wait()

    def stop(self) -> list[Sample]:
        """End the sampling; return all samples.

        Raises:
            RuntimeError: there are none; the process's own words are in the errors file.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if not self._samples:
            raise RuntimeError("NVML gave no samples; see the errors above")
        return self._samples

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._samples.append(Sample.from_json(line))
            self._first.set()
        self._first.set()
