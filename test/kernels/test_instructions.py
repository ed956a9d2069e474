# Copyright 2026 The reflex_llm_ros authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Instructions a weight of the persistent decode kernel, from machine code for an Orin."""

from pathlib import Path

import pytest
from reflex_llm_ros.bench.bars import INSTRUCTIONS
from reflex_llm_ros.bench.sass import disassemble, find_nvdisasm, source_of, step_cost
import registers

LOOP = """
.text.decode_step:
        /*0000*/                   IDP.4A.U8.S8 R1, R2, R3, RZ ;
.L_x_1:
        /*0010*/                   LDS.128 R4, [R8] ;
        /*0020*/                   BRA.CONV ~URZ, `(.L_x_2) ;
        /*0030*/                   CALL.REL.NOINC `($warpsync) ;
.L_x_2:
        /*0040*/                   IDP.4A.U8.S8 R1, R4, R5, R1 ;
        /*0050*/                   IDP.4A.U8.S8 R1, R6, R7, R1 ;
        /*0060*/              @P0 BRA `(.L_x_4) ;
        /*0070*/                   LDGSTS.E.BYPASS.128 [R69], [R4.64] ;
        /*0080*/              @!P1 BRA `(.L_x_4) ;
        /*0090*/                   SHFL.BFLY PT, R2, R1, 0x8, 0x1f ;
        /*00a0*/                   FADD R1, R1, R2 ;
.L_x_4:
        /*00a8*/                   IADD3 R9, R9, 0x1, RZ ;
        /*00b0*/                   ISETP.NE.AND P2, PT, R9, RZ, PT ;
        /*00c0*/              @P2 BRA `(.L_x_1) ;
        /*00d0*/                   EXIT ;
"""


def test_the_longer_way_that_ends_no_quad_is_counted() -> None:
    cost = step_cost(LOOP, 'q4k', 1)
    assert (cost.weights, cost.instructions, cost.integer) == (8, 10, 4)
    assert step_cost(LOOP, 'q4k', 2).weights == 4


@pytest.mark.parametrize('text', [
    LOOP.replace('decode_step', 'other'), LOOP.replace('LDGSTS', 'LDG'),
    LOOP.replace('IDP', 'IMAD')])
def test_what_is_no_such_loop_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match='kernel|loop'):
        step_cost(text, 'q4k', 1)


def test_a_disassembler_that_cannot_read_a_file_says_so(tmp_path: Path) -> None:
    program = tmp_path / 'nvdisasm'
    program.write_text('#!/bin/sh\n(echo "warning : old format"; echo "error : sm_87 is unknown";'
                       ' echo) >&2\nexit 1\n')
    program.chmod(0o755)
    with pytest.raises(ValueError, match='nvdisasm: error : sm_87 is unknown$'):
        disassemble(b'', program)


@pytest.mark.skipif(find_nvdisasm() is None, reason='nvdisasm is not installed')
@pytest.mark.parametrize(('kind', 'words'), INSTRUCTIONS)
def test_instructions_a_weight_keep_to_the_bars(kind: str, words: int) -> None:
    nvdisasm = find_nvdisasm()
    assert nvdisasm is not None
    cubin = registers.compile_source(
        source_of(kind, words), registers.PINNED, 'sm_87')[1]
    cost = step_cost(disassemble(cubin, nvdisasm), kind, words)
    # A lane has 16 columns of 4 rows, of all 32 lanes.
    assert cost.weights == 64
    assert cost.a_weight <= INSTRUCTIONS[kind, words]
