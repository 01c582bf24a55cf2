"""Checks and times the first product: r3.cubin as built, r2.cubin with maps of rank 2, control.cubin the probe."""
import ctypes, sys, time, os, re, torch
t00=time.time()
cu=ctypes.CDLL('libcuda.so.1'); P=ctypes.c_void_p
torch.zeros(1,device='cuda')
def ck(r,w):
    if r:
        s=ctypes.c_char_p(); cu.cuGetErrorName(r,ctypes.byref(s)); raise RuntimeError(f'{w}: {s.value}')
def load(p):
    mod=P(); ck(cu.cuModuleLoadData(ctypes.byref(mod),open(p,'rb').read()),'load'); return mod
mods={'r3':load('r3.cubin'),'r2':load('r2.cubin'),'r3b':load('r3.cubin')}; control=load('control.cubin')
SM=torch.cuda.get_device_properties(0).multi_processor_count
SMEM=196608+32768+96+1008
def tmap(buf,at,t,batch,stride,rank=3,ty=1):
    a=ctypes.addressof(buf)+at
    dims=(ctypes.c_uint64*3)(t.shape[-1],t.shape[-2],batch); st=(ctypes.c_uint64*2)(t.stride(-2)*2,stride*2); b=(ctypes.c_uint32*3)(64,64,1); es=(ctypes.c_uint32*3)(1,1,1)
    tmp=ctypes.create_string_buffer(256); ta=(ctypes.addressof(tmp)+63)//64*64
    ck(cu.cuTensorMapEncodeTiled(ctypes.c_void_p(ta),ty,rank,ctypes.c_void_p(t.data_ptr()),dims,st,b,es,0,3,2,0),'encode')
    ctypes.memmove(a,ta,128)
BIAS,RES,ACC,WIDE=1,8,16,32
class G:
    def __init__(s,name,mod):
        s.name=name; name,w=name.split(); s.how={'r3':(3,1),'r2':(2,1),'r3b':(3,9)}[w]; p=name.split('_'); s.n=int(p[0][1:]); s.form=p[1][:2]; s.dt=torch.float16 if 'f16' in name else torch.bfloat16
        s.f=P(); ck(cu.cuModuleGetFunction(ctypes.byref(s.f),mod,name.encode()),name); ck(cu.cuFuncSetAttribute(s.f,8,SMEM),'smem')
    def prep(s,a,b,c,m,n,k,flags=0,bias=None,res=None,batch=1):
        maps=ctypes.create_string_buffer(256)
        tmap(maps,0,a,batch,a.stride(0) if batch>1 else a.stride(-2)*a.shape[-2],*s.how); tmap(maps,128,b,batch,b.stride(0) if batch>1 else b.stride(-2)*b.shape[-2],*s.how)
        u=ctypes.c_uint32; q=ctypes.c_uint64; ptr=lambda t: q(t.data_ptr() if t is not None else 0)
        args=[maps,u(m),u(n),u(k),u(batch),u(flags),ptr(c),u(c.stride(-2)),q(c.stride(0) if batch>1 else 0),ptr(bias),ptr(res),u(res.stride(-2) if res is not None else 0),q(res.stride(0) if res is not None and batch>1 else 0)]
        arr=(P*len(args))(*[ctypes.addressof(x) for x in args])
        g=min(SM,-(-m//128)*-(-n//s.n)*batch)
        st=ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        def go():
            r=cu.cuLaunchKernel(s.f,g,1,1,384,1,1,SMEM,st,arr,None)
            if r: ck(r,'launch '+s.name)
        go.keep=(args,arr); return go
def operands(form,m,n,k,pad=0,dt=torch.bfloat16,batch=None):
    sh=lambda x,y:(x,y+pad) if batch is None else (batch,x,y+pad)
    r=lambda x,y:torch.randn(*sh(x,y),device='cuda',dtype=dt)[...,:y]
    a=r(k,m) if form=='tn' else r(m,k)
    b=r(n,k) if form=='nt' else r(k,n)
    am=a.transpose(-1,-2) if form=='tn' else a; bm=b.transpose(-1,-2) if form=='nt' else b
    return a,b,am,bm
names=re.findall(r'\.entry (\w+)\(',open('probe.ptx').read())
ks={nm+' '+w:G(nm+' '+w,md) for nm in names for w,md in mods.items()}
log=open(os.environ.get('OUT','.')+'/wgmma2.log','w')
def say(*a):
    print(*a,flush=True); print(*a,file=log,flush=True)
bad=set()
for nm,g in ks.items():
    worst=0; note=''
    for (m,n,k,pad,flags,batch) in ((128,256,64,0,0,None),(256,512,256,0,WIDE,None),(1000,520,776,8,0,None),(8,8,8,0,0,None),(3152,2304,768,0,0,None),(4096,4096,1024,64,0,None),
          (136,264,72,8,BIAS,None),(1000,520,776,8,RES,None),(1000,520,776,8,ACC,None),(1000,520,776,8,ACC|RES|BIAS|WIDE,None),(1000,520,776,8,ACC|RES|BIAS,None),(1000,520,776,8,BIAS|2|RES,None),(1000,520,776,8,BIAS|4|WIDE,None),(1000,520,776,8,2|WIDE,None),(200,136,200,8,ACC|RES|BIAS,5),(200,136,200,8,WIDE,5)):
        dt=torch.float32 if flags&WIDE else g.dt
        if batch and g.how[0]==2: continue
        a,b,am,bm=operands(g.form,m,n,k,pad,g.dt,batch)
        sh=(m,n+8) if batch is None else (batch,m,n+8)
        c0=torch.randn(*sh,device='cuda',dtype=dt); res=torch.randn(*sh,device='cuda',dtype=dt); bias=torch.randn(n,device='cuda',dtype=dt)
        c=c0.clone(); go=g.prep(a,b,c,m,n,k,flags,bias,res,batch or 1); go()
        try: torch.cuda.synchronize()
        except Exception as e: say(nm,'FAULT',m,n,k,flags,str(e)[:90]); sys.exit(1)
        ref=am.double()@bm.double(); got=c[...,:n].double(); sd=ref.std()
        if flags&BIAS: ref=ref+bias.double()
        if flags&6: ref=torch.nn.functional.gelu(ref,approximate='tanh' if flags&2 else 'none')
        if flags&RES: ref=ref+res[...,:n].double()
        if flags&ACC: ref=ref+c0[...,:n].double()
        e=((got-ref).abs()/(ref.abs()+sd)).max().item(); worst=max(worst,e if e==e else 9e9)
        lim=2e-5 if flags&WIDE else 0.0045
        if not (c[...,n:]==c0[...,n:]).all(): note+=' OVERRUN'
        if not e<lim: note+=f' [{m}x{n}x{k}+{pad} f{flags}: {e:.2e}]'
        if not flags:
            c2=c.clone(); go(); torch.cuda.synchronize()
            if not torch.equal(c,c2): note+=' NONDET'
    if note: bad.add(nm)
    say(f'{nm:14s} worst {worst:.1e}', 'ok' if not note else note)
def tmap2(t):
    tmp=ctypes.create_string_buffer(256); ta=(ctypes.addressof(tmp)+63)//64*64
    dims=(ctypes.c_uint64*2)(t.shape[1],t.shape[0]); st=(ctypes.c_uint64*1)(t.stride(0)*2); b=(ctypes.c_uint32*2)(64,64); es=(ctypes.c_uint32*2)(1,1)
    ck(cu.cuTensorMapEncodeTiled(ctypes.c_void_p(ta),9,2,ctypes.c_void_p(t.data_ptr()),dims,st,b,es,0,3,2,0),'encode')
    m=(ctypes.c_char*128)(); ctypes.memmove(m,ta,128); return m
def ctl(name,a,b,c,m,n,k):
    f=P(); ck(cu.cuModuleGetFunction(ctypes.byref(f),control,name.encode()),name); sm=6*32768+1024+16384; ck(cu.cuFuncSetAttribute(f,8,sm),'smem')
    args=[tmap2(a),tmap2(b),ctypes.c_uint64(c.data_ptr()),*(ctypes.c_uint32(v) for v in (m,n,k,c.stride(0),8))]
    arr=(P*len(args))(*[ctypes.addressof(x) for x in args]); st=ctypes.c_void_p(torch.cuda.current_stream().cuda_stream); g=min(SM,-(-m//128)*-(-n//128))
    def go():
        r=cu.cuLaunchKernel(f,g,1,1,384,1,1,sm,st,arr,None)
        if r: ck(r,'launch '+name)
    go.keep=(args,arr); return go
def ms(fs,reps=7,inner=10):
    T=[[] for _ in fs]
    for f in fs:
        for _ in range(3): f()
    torch.cuda.synchronize()
    for _ in range(reps):
        for i,f in enumerate(fs):
            time.sleep(0.004); f()
            x,y=torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True)
            x.record()
            for _ in range(inner): f()
            y.record(); torch.cuda.synchronize(); T[i].append(x.elapsed_time(y)/inner)
    return [sorted(t)[len(t)//2] for t in T]
for (m,n,k) in ((4096,4096,4096),(8192,3072,768),(8192,768,3072),(3152,2304,768)):
    for form in ('nt','nn','tn'):
        a,b,am,bm=operands(form,m,n,k); c=torch.zeros(m,n,device='cuda',dtype=torch.bfloat16); c32=torch.zeros(m,n,device='cuda'); c0=torch.empty_like(c); res=torch.randn_like(c); bias=torch.randn(n,device='cuda',dtype=c.dtype)
        fs=[lambda: torch.mm(am,bm,out=c0)]; nmz=['cuBLAS']
        ct={'nt':'g128_c1_nt_e1_nosr','nn':'g128_c1_nn_e1_nosr','tn':'g128_c1_tn_e1_nosr'}[form]
        fs.append(ctl(ct,a,b,c,m,n,k)); nmz.append('probe')
        if form=='nt': fs.append(ctl('g128_c1_nt_e1_pp',a,b,c,m,n,k)); nmz.append('probe-pp'); fs.append(ctl('g256_c1_nt_e1',a,b,c,m,n,k)) if False else None
        for w in mods:
            nm='h128_'+form+' '+w
            if nm in bad: continue
            fs+=[ks[nm].prep(a,b,c,m,n,k)]; nmz+=[w]; continue
            fs+=[ks[nm].prep(a,b,c,m,n,k),ks[nm].prep(a,b,c,m,n,k,BIAS|2,bias,res),ks[nm].prep(a,b,c,m,n,k,BIAS|RES,bias,res),ks[nm].prep(a,b,c32,m,n,k,WIDE),ks[nm].prep(a,b,c32,m,n,k,WIDE|ACC)]
            nmz+=[w,w+'+bias+gelu',w+'+bias+res',w+' f32',w+' f32 acc']
        t=ms(fs); fl=2*m*n*k/1e9
        say(f'{m}x{n}x{k} {form} cuBLAS {t[0]*1e3:.1f} us {fl/t[0]:.0f} TFLOP/s | '+' | '.join(f'{w} {100*t[0]/x:.1f}' for w,x in zip(nmz[1:],t[1:])))
    if time.time()-t00>95: say('time'); break
say('seconds',round(time.time()-t00,1))
