"""Which pages a cache holds that forgets the least recently used one first."""

from __future__ import annotations

from watersmeet.core.arrays import Int32, Int64
from watersmeet.kernels.compile import kernel

HEAD, TAIL, USED = 0, 1, 2


@kernel
def touch(pages: Int64, frame_of: Int32, page_of: Int64, newer: Int32, older: Int32, ends: Int32) -> int:
    """Use pages in their order; returns how many were not there.

    `frame_of` has each page's frame (-1: none); the frames form a list from the newest (`ends[HEAD]`) to the oldest.
    """
    missed = 0
    for i in range(pages.shape[0]):
        page = pages[i]
        frame = frame_of[page]
        if frame >= 0 and frame == ends[HEAD]:
            continue
        if frame >= 0:
            newer_one, older_one = newer[frame], older[frame]
            older[newer_one] = older_one
            if older_one >= 0:
                newer[older_one] = newer_one
            else:
                ends[TAIL] = newer_one
        else:
            missed += 1
            if ends[USED] < page_of.shape[0]:
                frame = ends[USED]
                ends[USED] += 1
            else:
                frame = ends[TAIL]
                frame_of[page_of[frame]] = -1
                ends[TAIL] = newer[frame]
                if ends[TAIL] >= 0:
                    older[ends[TAIL]] = -1
                else:
                    ends[HEAD] = -1
            page_of[frame] = page
            frame_of[page] = frame
        newer[frame] = -1
        older[frame] = ends[HEAD]
        if ends[HEAD] >= 0:
            newer[ends[HEAD]] = frame
        else:
            ends[TAIL] = frame
        ends[HEAD] = frame
    return missed
