"""Adds to the entries what rustc cannot say: python3 directives.py IN.s OUT.ptx"""
import re,sys
t=open(sys.argv[1]).read()
def f(m):
    name=m.group(1); d=".maxntid 384, 1, 1\n.minnctapersm 1\n"
    if "_m2_" in name or "_n2_" in name: d+=".explicitcluster\n.reqnctapercluster 2, 1, 1\n"
    return m.group(0)[:-1].replace(".align 16 .b8",".align 64 .b8")+d+"{"
t=re.sub(r"\.entry (\w+)\([^)]*\)\s*\{",f,t)
open(sys.argv[2],"w").write(t)
